"""A guide for the ensemble, and which of the client's fields asks for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from client.parameters import Parameters

KIND, GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"

Format = dict[str, Any]  # of a structural tag


@dataclass(frozen=True, slots=True)
class Guide:
    """`field`: of the client's request, which asks for it."""

    kind: str
    guide: str
    field: str

    @property
    def parameters(self) -> Parameters:
        return {"guided_decoding_guide_type": self.kind, "guided_decoding_guide": self.guide}


def tagged(form: Format, field: str) -> Guide:
    """A guide of several parts."""
    document = {"type": "structural_tag", "format": form}
    return Guide("structural_tag", json.dumps(document, ensure_ascii=False), field)


def names_of(guide: Guide | None) -> dict[str, str]:
    """What the client calls the ensemble's fields of it."""
    return {} if guide is None else dict.fromkeys((KIND, GUIDE), guide.field)
