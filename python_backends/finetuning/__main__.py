"""Trains LoRA adapters: gives jobs to a server, which trains them in the time that serving leaves, or trains
them in this process.

    python -m python_backends.finetuning submit train.jsonl --name shout [--rank 8 …]
    python -m python_backends.finetuning submit train.jsonl --alone --name shout [--rank 8 …]
    python -m python_backends.finetuning submit --alone --resume ftjob-…
    python -m python_backends.finetuning list | show JOB | events JOB | cancel JOB | tokens FILE
    python -m python_backends.finetuning export JOB DIRECTORY

The server must have the same model.directory and finetuning.directory. A job of --alone that was killed
goes on with --resume; one of a server goes on by itself. The data: docs/finetuning.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from python_backends.finetuning import jobs
from python_backends.finetuning.alone import new_job, read_data, train
from python_backends.finetuning.export import export
from python_backends.finetuning.progress import plot, watch
from python_backends.settings import ROOT, Settings, SettingsError, load
from python_backends.text.checkpoint import CheckpointError


def _submit(asked: argparse.Namespace, settings: Settings) -> None:
    """Raises JobError if the job has failed."""
    if (asked.data is None) == (asked.resume is None):
        raise jobs.JobError("submit: give either a file or --resume JOB")
    if asked.resume is not None and not asked.alone:
        raise jobs.JobError("submit: --resume is for jobs of --alone; a server's jobs go on by themselves")
    if asked.resume is not None:
        job = jobs.find(jobs.jobs_directory(settings), asked.resume)
    else:
        job = new_job(settings, asked.data, asked)
    print(job.id, flush=True)
    if asked.alone:
        train(job, settings)
    elif not asked.detach:
        job = _watched(job)
    print(f"{job.id}: {job.status}")
    if adapter := job.options.get("adapter"):
        print(f'it is served as lora_name = "{adapter}"')
    if job.status == "failed":
        raise jobs.JobError(job.fields["error"]["message"])


def _watched(job: jobs.Job) -> jobs.Job:
    try:
        ended = watch(job)
    except KeyboardInterrupt:
        print(f"{job.id} goes on in the server; cancel {job.id} ends it", file=sys.stderr)
        return jobs.Job(job.directory)
    plot(ended)
    return ended


def _list(asked: argparse.Namespace, settings: Settings) -> None:
    found = jobs.all_jobs(jobs.jobs_directory(settings))
    if asked.json:
        print(json.dumps({"object": "list", "data": [job.fields for job in found], "has_more": False}))
        return
    for job in found:
        name = job.fields["fine_tuned_model"] or job.options["suffix"]
        print(f"{job.id}  {job.status:10s}  {len(job.losses):6d} of {job.options['steps']} steps  {name}")


def _show(asked: argparse.Namespace, settings: Settings) -> None:
    print(json.dumps(_job(asked, settings).fields, indent=None if asked.json else 2))


def _events(asked: argparse.Namespace, settings: Settings) -> None:
    for event in _job(asked, settings).events:
        print(json.dumps(event) if asked.json else f"{event['created_at']}  {event['message']}")


def _cancel(asked: argparse.Namespace, settings: Settings) -> None:
    _job(asked, settings).cancel()


def _tokens(asked: argparse.Namespace, settings: Settings) -> None:
    for example in read_data(settings, asked.data):
        print(json.dumps({"ids": example.ids.tolist(), "mask": example.learned.astype(int).tolist()}))


def _export(asked: argparse.Namespace, settings: Settings) -> None:
    step = export(_job(asked, settings), asked.directory)
    print(f"{asked.directory}: the adapter after step {step}")


def _job(asked: argparse.Namespace, settings: Settings) -> jobs.Job:
    return jobs.find(jobs.jobs_directory(settings), asked.job)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m python_backends.finetuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--settings", type=Path, default=ROOT / "gapless.toml", metavar="FILE", help="those of the server"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", dest="overrides")
    verbs = parser.add_subparsers(required=True)
    _add_submit(verbs.add_parser("submit", help="train a new job"))
    _verb(verbs.add_parser("list", help="all jobs of this model"), _list)
    for name, verb in (("show", _show), ("events", _events), ("cancel", _cancel)):
        _verb(verbs.add_parser(name), verb).add_argument("job")
    tokens = _verb(verbs.add_parser("tokens", help="ids and mask of each example, one a line"), _tokens)
    tokens.add_argument("data", type=Path)
    exported = _verb(verbs.add_parser("export", help="write a PEFT directory"), _export)
    exported.add_argument("job")
    exported.add_argument("directory", type=Path)
    return parser


def _verb(
    parser: argparse.ArgumentParser, verb: Callable[[argparse.Namespace, Settings], None]
) -> argparse.ArgumentParser:
    parser.set_defaults(verb=verb)
    parser.add_argument("--json", action="store_true", help="JSON for programs")
    return parser


def _add_submit(parser: argparse.ArgumentParser) -> None:
    _verb(parser, _submit)
    parser.add_argument("data", type=Path, nargs="?", help="a JSONL file")
    parser.add_argument("--alone", action="store_true", help="train in this process, without a server")
    parser.add_argument("--detach", action="store_true", help="do not watch the job")
    parser.add_argument("--resume", metavar="JOB", help="go on with a job of --alone that was killed")
    parser.add_argument("--name", default="adapter", help="of the adapter")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=16.0)
    parser.add_argument("--targets", default="all", help="names of modules with commas, or all")
    parser.add_argument("--epochs", type=int, default=1, dest="passes", help="passes over the data")
    parser.add_argument("--steps", type=int, help="optimiser steps, in place of --epochs")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)


def main() -> int:
    asked = _parser().parse_args()
    try:
        overrides = dict(item.partition("=")[::2] for item in asked.overrides)
        asked.verb(asked, load(asked.settings, overrides))
    except (SettingsError, CheckpointError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
