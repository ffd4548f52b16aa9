"""Trains LoRA adapters: gives jobs to a server, which trains them in the time that serving leaves, or trains
them in this process.

    gapless finetune submit train.jsonl --name law [--rank 8 …]
    gapless finetune submit more.jsonl --from law
    gapless finetune submit train.jsonl --alone --name law [--rank 8 …]
    gapless finetune submit --alone --resume ftjob-…
    gapless finetune list | show JOB | events JOB | cancel JOB | delete JOB | tokens FILE
    gapless finetune export JOB DIRECTORY [--step 40]

The server must have the same model.directory and finetuning.directory, and, for the name of a served adapter
in --from, adapters.directory. It trains if it was started with
`gapless serve --set adapters.directory=adapters`. A job of --alone that was killed goes on with --resume; one
of a server goes on by itself. The data, and what each option does: docs/finetuning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from commands.called import called
from commands.finetune.alone import new_job, read_data, train
from commands.finetune.beginning import ADAPTER, ALPHA, RANK, TARGETS
from commands.finetune.progress import plot, watch
from commands.model import located
from python_backends.checkpoint.source import CheckpointError
from python_backends.finetuning import jobs
from python_backends.finetuning.export import export
from python_backends.finetuning.job_fields import LEARNING_RATE
from python_backends.finetuning.publish import NOT_SERVED
from python_backends.finetuning.watchers import refusals, watchers
from python_backends.launcher.address import asked_at
from python_backends.settings import (
    ServerSettings,
    Settings,
    SettingsError,
    add_arguments,
    of_command_line,
)

OPTIONS = {"start": "from"}  # whose names here are others


def _submit(asked: argparse.Namespace, settings: Settings) -> None:
    """Raises JobError if the job has not succeeded."""
    _check_options(asked)
    directory = jobs.jobs_directory(settings)
    if not asked.alone:
        _check_servers(directory)
    job = new_job(settings, asked.data, asked) if asked.resume is None else jobs.find(directory, asked.resume)
    print(job.id, flush=True, file=sys.stderr if asked.json else sys.stdout)
    if asked.alone:
        _train(job, settings, asked)
    elif not asked.detach:
        job = _watched(job, asked)
    if asked.json:
        print(json.dumps(job.fields))
    else:
        _say_how(job, asked_at(_server(directory) or settings.server))
    if job.status == "failed":
        raise jobs.JobError(job.fields["error"]["message"])
    if job.status == "cancelled":
        raise jobs.JobError(f"{job.id} was cancelled")


def _check_options(asked: argparse.Namespace) -> None:
    """Raises JobError."""
    if (asked.data is None) == (asked.resume is None):
        raise jobs.JobError(
            "submit: give a JSONL file (with make: DATA=train.jsonl), or --alone --resume JOB"
        )
    if asked.resume is not None and not asked.alone:
        raise jobs.JobError("submit: --resume is for jobs of --alone; a server's jobs go on by themselves")
    if asked.detach and asked.alone:
        raise jobs.JobError("submit: --detach is for jobs of a server; --alone trains in this process")
    if asked.resume is not None:
        _check_resumed(asked)


def _check_resumed(asked: argparse.Namespace) -> None:
    """Raises JobError, which names the options that the job has already."""
    usual = vars(command_parser().parse_args(["submit"]))
    options = usual.keys() - {"settings", "overrides", "verb", "json", "alone", "resume"}
    if given := sorted(name for name in options if getattr(asked, name) != usual[name]):
        names = ", ".join("--" + OPTIONS.get(name, name.replace("_", "-")) for name in given)
        raise jobs.JobError(f"submit: {names}: a job that is resumed has its own")


def _check_servers(directory: Path) -> None:
    """JobError if servers look for jobs in `directory` and none of them trains."""
    found = refusals(directory)
    if found and "" not in found:
        raise jobs.JobError(f"no job was made. {found[0]}")
    if not found:
        said = "one with adapters.directory trains them and serves what they have trained"
        print(f"no server looks for jobs in {directory} yet; {said}", file=sys.stderr)


def _server(directory: Path) -> ServerSettings | None:
    """The one that trains the jobs in `directory`; None: none does."""
    trains = (each for each in watchers(directory) if not each.refusal)
    return next((ServerSettings(each.address, grpc_port=each.grpc_port) for each in trains), None)


def _say_how(job: jobs.Job, url: str) -> None:
    """How it has ended, or where it stands. `url`: of the server, for a chat; empty: the usual one."""
    print(f"{job.id}: {job.status}")
    if job.status != "succeeded":
        return
    print(f"adapter: {job.directory / 'adapter'}")
    if adapter := job.options.get("adapter"):
        chat = shlex.join([*called(), "chat", *(("--url", url) if url else ()), "--lora-name", adapter])
        print(f'it is served as lora_name = "{adapter}"; try it: {chat}')
    else:
        refused = [each["message"] for each in job.events if each["message"].startswith(NOT_SERVED)]
        usual = "it is not served: a server with adapters.directory serves it; `export` puts it there"
        print(refused[-1] if refused else usual)


def _train(job: jobs.Job, settings: Settings, asked: argparse.Namespace) -> None:
    try:
        train(job, settings)
    except KeyboardInterrupt:
        command = _command(asked, "submit", "--alone", "--resume", job.id)
        print(f"to go on after the last saved state: {command}", file=sys.stderr)
        raise


def _watched(job: jobs.Job, asked: argparse.Namespace) -> jobs.Job:
    try:
        ended = watch(job)
    except KeyboardInterrupt:
        command = _command(asked, "cancel", job.id)
        print(f"{job.id} goes on in the server; to end it: {command}", file=sys.stderr)
        raise SystemExit(130) from None
    plot(ended)
    return ended


def _command(asked: argparse.Namespace, *words: str) -> str:
    """This command line with another verb and the same settings."""
    file = ("--settings", str(asked.settings.absolute())) if asked.settings else ()
    overrides = [word for each in asked.overrides for word in ("--set", each)]
    return shlex.join([*called(), "finetune", *file, *overrides, *words])


def _list(asked: argparse.Namespace, settings: Settings) -> None:
    found = jobs.all_jobs(jobs.jobs_directory(settings))
    if asked.json:
        print(json.dumps({"object": "list", "data": [job.fields for job in found], "has_more": False}))
        return
    if not found:
        print(f"no job in {jobs.jobs_directory(settings)}", file=sys.stderr)
    for job in found:
        name = job.fields["fine_tuned_model"] or job.options["suffix"]
        of_all = "" if job.is_asked else f" of {job.options['steps']}"
        print(f"{job.id}  {job.status:10s}  {len(job.losses):6d}{of_all} steps  {name}")


def _show(asked: argparse.Namespace, settings: Settings) -> None:
    print(json.dumps(_job(asked, settings).fields, indent=None if asked.json else 2))


def _events(asked: argparse.Namespace, settings: Settings) -> None:
    for event in _job(asked, settings).events:
        time = datetime.fromtimestamp(event["created_at"]).isoformat(" ")
        print(json.dumps(event) if asked.json else f"{time}  {event['message']}")


def _cancel(asked: argparse.Namespace, settings: Settings) -> None:
    job = _job(asked, settings)
    job.cancel()
    if asked.json:
        print(json.dumps(jobs.Job(job.directory).fields))
        return
    print(f"{job.id}: cancelled; a server that trains it ends it after the step that is computed")


def _delete(asked: argparse.Namespace, settings: Settings) -> None:
    job = _job(asked, settings)
    adapters = ", ".join(sorted(job.adapters))
    job.delete()
    if asked.json:
        print(json.dumps({"id": job.id, "object": "fine_tuning.job", "deleted": True}))
        return
    print(f"{job.id}: deleted, with its examples, losses and saved states")
    if adapters:
        print(f"what was published of it stays in adapters.directory: {adapters}")


def _tokens(asked: argparse.Namespace, settings: Settings) -> None:
    for example in read_data(settings, asked.data):
        print(json.dumps({"ids": example.ids.tolist(), "mask": example.learned.astype(int).tolist()}))


def _export(asked: argparse.Namespace, settings: Settings) -> None:
    step = export(_job(asked, settings), asked.directory, asked.step)
    if asked.json:
        print(json.dumps({"directory": str(asked.directory), "step": step}))
        return
    print(f"{asked.directory}: the adapter after step {step}")


def _job(asked: argparse.Namespace, settings: Settings) -> jobs.Job:
    return jobs.find(jobs.jobs_directory(settings), asked.job)


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gapless finetune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_submit(verbs.add_parser("submit", help="train a new job"))
    _verb(verbs.add_parser("list", help="all jobs of this model"), _list)
    for name, verb, text in (
        ("show", _show, "all fields of a job"),
        ("events", _events, "what happened to a job, and when"),
        ("cancel", _cancel, "end a job; its saved states stay"),
        ("delete", _delete, "remove a job that has ended, and its saved states; what is served of it stays"),
    ):
        _add_job(_verb(verbs.add_parser(name, help=text), verb))
    tokens = _verb(verbs.add_parser("tokens", help="ids and mask of each example, one a line"), _tokens)
    tokens.add_argument("data", type=Path, help="a JSONL file")
    exported = _verb(verbs.add_parser("export", help="write a PEFT directory"), _export)
    _add_job(exported)
    exported.add_argument("directory", type=Path, help="does not exist yet")
    exported.add_argument("--step", type=int, help="of a saved state that is kept; without it the last one")
    return parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its id, as `list` shows it")


def _verb(
    parser: argparse.ArgumentParser, verb: Callable[[argparse.Namespace, Settings], None]
) -> argparse.ArgumentParser:
    parser.set_defaults(verb=verb)
    parser.add_argument("--json", action="store_true", help="JSON for programs")
    return parser


def _add_submit(parser: argparse.ArgumentParser) -> None:
    add = _verb(parser, _submit).add_argument
    add("data", type=Path, nargs="?", help="a JSONL file: docs/finetuning.md")
    add("--alone", action="store_true", help="train in this process, without a server")
    add("--detach", action="store_true", help="do not watch the job")
    add("--resume", metavar="JOB", help="go on with a killed job of --alone")
    add("--from", dest="start", metavar="ADAPTER", help="to go on from: a PEFT directory or a lora_name")
    add("--name", help=f"of the adapter, for lora_name ({ADAPTER}; with --from LORA_NAME that name)")
    add(
        "--held-out",
        type=Path,
        metavar="FILE",
        help="a JSONL file that is not learned: the adapter is served only if the loss of its examples falls",
    )
    add("--rank", type=int, help=f"width of the adapter's matrices ({RANK}; with --from its own)")
    add("--alpha", type=float, help=f"alpha / rank multiplies the adapter ({ALPHA:g}; with --from its own)")
    add("--targets", help=f"names of modules with commas, or all ({TARGETS}; with --from its own)")
    add("--epochs", type=int, default=1, help="passes over the data (%(default)s)")
    add("--steps", type=int, help="optimiser steps, in place of --epochs")
    add("--batch-size", type=int, default=4, help="examples an optimiser step (%(default)s)")
    told = "constant (%(default)s); small models take more"
    add("--learning-rate", type=float, default=LEARNING_RATE, help=told)
    add("--seed", type=int, default=0, help="of the first weights and the order of examples (%(default)s)")


def main() -> int:
    asked = command_parser().parse_args()
    try:
        asked.verb(asked, located(of_command_line(asked)))
    except BrokenPipeError:  # who reads what is printed has left: `commands.__main__`
        raise
    except (SettingsError, CheckpointError, ValueError, OSError) as error:
        print(_message(error), file=sys.stderr)
        return os.EX_IOERR if isinstance(error, OSError) else 1
    except KeyboardInterrupt:
        print("ended by Ctrl-C", file=sys.stderr)
        return 130
    return 0


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
