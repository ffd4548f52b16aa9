"""From which adapter a job goes on, and which options contradict it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from commands.finetune.beginning import check_agrees, name_of, place
from python_backends.nouns.training import AdapterShape


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("mine", "adapters/law/1", "adapters/law/2", "adapters/flat"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "adapter_config.json").write_text("{}")
    return tmp_path


def asked(start: str, **options: Any) -> Namespace:
    return Namespace(**{"start": start, "name": None, "rank": None, "alpha": None, "targets": None} | options)


def test_it_is_a_directory_or_a_served_version(root: Path) -> None:
    adapters = root / "adapters"
    assert place(str(root / "mine"), None) == root / "mine"
    assert place("law", adapters) == adapters / "law" / "2"
    assert place("law@1", adapters) == adapters / "law" / "1"
    assert place("flat", adapters) == adapters / "flat"
    for start, where, says in (
        ("law", None, "the name of a served adapter needs adapters.directory"),
        ("law@3", adapters, "neither a directory with adapter_config.json nor an adapter in"),
        ("poems", adapters, "neither a directory"),
        ("../mine", adapters, "it is no directory with adapter_config.json"),
        (str(root), adapters, "it is no directory with adapter_config.json"),
    ):
        with pytest.raises(ValueError, match=says) as refused:
            place(start, where)
        assert str(refused.value).startswith(f"--from {start}: ")


def test_a_served_adapter_gets_another_version_of_its_name(root: Path) -> None:
    assert name_of(asked("law@1")) == "law"
    assert name_of(asked("law@1", name="poems")) == "poems"
    assert name_of(asked(str(root / "mine"))) == "adapter"


def test_what_contradicts_the_adapter_is_refused_by_name() -> None:
    shape = AdapterShape(4, 8.0, ("q_proj", "v_proj"))
    same = {"rank": 4, "alpha": 8.0, "targets": "v_proj,q_proj"}
    check_agrees(asked("law", **same), shape, ("v_proj", "q_proj"))
    check_agrees(asked("law"), shape, shape.modules)
    for options, chosen, says in (
        ({"rank": 8}, shape.modules, "--rank 8: the adapter of --from law has 4; leave it out"),
        ({"alpha": 16.0}, shape.modules, "--alpha 16.0: the adapter of --from law has 8; leave it out"),
        (
            {"targets": "q_proj"},
            ("q_proj",),
            "--targets q_proj: the adapter of --from law has q_proj,v",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            check_agrees(asked("law", **options), shape, chosen)
