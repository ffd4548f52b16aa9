"""The command line that trains, exports and evaluates the bundled model."""

import argparse
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from models.recipe import ROOT
from models.recipe.card import NEWCOMERS, publish, tables
from models.recipe.corpus import Corpus, load_corpora
from models.recipe.evaluation import Evaluation, Result
from models.recipe.examples import ExampleStream
from models.recipe.newcomers import KINDS
from models.recipe.short_tasks import short_tasks
from models.recipe.tasks import Task, all_tasks
from models.recipe.tokenizer import train_tokenizer
from models.recipe.training import Budget, Training, export, mean_weights, new_model, stored_model
from models.recipe.velin import LEXICON_FILE, build_lexicon, read_lexicon, write_lexicon

OUTPUT = ROOT / "models" / "bundled"
TOKENIZER_EXAMPLES = 24_000
Asked = TypeVar("Asked")
GROWN = 0.3  # the progress from which on examples have their full lengths

EPILOG = """\
examples:
  train for an hour on one thread, then write models/bundled:
    python -m models.recipe --minutes 60 --checkpoint /tmp/bundled --threads 1
  Ctrl-C stops it at any time; the same command continues from the last checkpoint (one a minute).
  write the checkpoint as a model directory, without further training:
    python -m models.recipe --export --checkpoint /tmp/bundled
  train a stored model further, in a number of steps:
    python -m models.recipe --continue-from models/bundled --rate 1.5e-3 --steps 1000 \\
      --checkpoint DIR
  measure the model in models/bundled on held-out prompts, as `make model-card` does:
    python -m models.recipe --evaluate

The text is the standard library of the Python that runs this; nothing is downloaded. One source file in
twenty, chosen by the hash of its name, is held out for --evaluate. With the budget in --minutes, the
learning rate decays and the examples grow longer with the share of the time that is used, so set the budget
before you start.
"""


def parse_arguments() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        description="Train the small Llama that Gapless carries, on a CPU or a CUDA device.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--evaluate",
        action="store_true",
        help="measure held-out prompts, print the table and write it into the card",
    )
    mode.add_argument("--export", action="store_true", help="only write the checkpoint's weights to --output")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="training time, over all runs together (default: 60)")
    budget.add_argument("--steps", type=int, help="optimiser steps instead of a time (4096 tokens a step)")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("bundled-checkpoint"),
        metavar="DIR",
        help="folder of the tokenizer, the lexicon and the checkpoint (default: %(default)s)",
    )
    parser.add_argument(
        "--continue-from",
        type=Path,
        metavar="DIR",
        help="begin with this model's weights, tokenizer and lexicon",
    )
    parser.add_argument(
        "--average",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="with --export: the mean of its weights and those of these checkpoints",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR",
                        help="model directory to write or to evaluate (default: models/bundled)")  # fmt: skip
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads of the matrix products (default: 1)"
    )
    parser.add_argument(
        "--rate", type=float, default=2.5e-3, help="highest learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--vocabulary", type=int, default=4096, help="tokens of a new tokenizer (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of weights and examples (default: %(default)s)"
    )
    parser.add_argument(
        "--prompts", type=int, default=200, help="held-out prompts a task for --evaluate (default: 200)"
    )
    return parser.parse_args()


def load_tokenizer(folder: Path, corpus: Corpus, tasks: list[Task], size: int) -> PreTrainedTokenizerFast:
    """Returns the checkpoint's tokenizer, and trains it first if there is none."""
    path = folder / "tokenizer"
    if not path.exists():
        rng = Random(0)
        exercises = [rng.choice(tasks).example(corpus, rng) for _ in range(TOKENIZER_EXAMPLES)]
        tokenizer = train_tokenizer(
            (text for each in tqdm(exercises, desc="tokenizer") for text in (each.prompt, each.answer)), size
        )
        tokenizer.save_pretrained(path)
    return PreTrainedTokenizerFast.from_pretrained(path)


def load_lexicon(folder: Path, corpus: Corpus) -> dict[str, str]:
    """Returns the checkpoint's lexicon of Velin, and makes it first if there is none. It is kept because the
    standard library of another Python has other frequent words.
    """
    if not (folder / LEXICON_FILE).exists():
        write_lexicon(build_lexicon(sentence for sentences in corpus.prose for sentence in sentences), folder)
    return read_lexicon(folder)


def keep_words(model: Path, folder: Path) -> None:
    """Puts a stored model's tokenizer and lexicon into the checkpoint, unless it has its own."""
    if not (folder / "tokenizer").exists():
        PreTrainedTokenizerFast.from_pretrained(model).save_pretrained(folder / "tokenizer")
        write_lexicon(read_lexicon(model), folder)


def evaluate(arguments: argparse.Namespace, held_out: Corpus) -> None:
    """Measures chat and plain prompts, prints the tables, and writes them into the card and next to it."""
    # the words of the model's training: another Python's text has others
    tasks = all_tasks(read_lexicon(arguments.output))
    evaluation, prompts = Evaluation(arguments.output, held_out), arguments.prompts
    short = short_tasks(read_lexicon(arguments.output), is_held_out=True)
    results = {
        "chat": _results(tasks, lambda task: evaluation.measure(task, prompts, chat=True)),
        "plain": _results(tasks, lambda task: evaluation.measure(task, prompts, chat=False)),
        "reworded": _results(tasks, lambda task: evaluation.measure_reworded(task, prompts)),
        "short": _results(short, lambda task: evaluation.measure(task, prompts, chat=True)),
        NEWCOMERS: _results(list(KINDS), lambda kind: evaluation.measure_newcomers(kind, prompts // 4)),
    }
    print(tables(results))
    publish(arguments.output, results)


def _results(asked: list[Asked], measure: Callable[[Asked], Result]) -> list[Result]:
    return [measure(each) for each in tqdm(asked, leave=False)]


def main() -> None:
    """Trains and exports, or only exports, or evaluates."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    corpus, held_out = load_corpora()
    if arguments.evaluate:
        evaluate(arguments, held_out)
        return
    arguments.checkpoint.mkdir(parents=True, exist_ok=True)
    if arguments.continue_from:
        keep_words(arguments.continue_from, arguments.checkpoint)
    lexicon = load_lexicon(arguments.checkpoint, corpus)
    tasks = all_tasks(lexicon)
    tokenizer = load_tokenizer(arguments.checkpoint, corpus, tasks, arguments.vocabulary)
    begun = arguments.continue_from
    model = (stored_model(begun) if begun else new_model(tokenizer)).to(
        "cuda" if torch.cuda.is_available() else "cpu"
    )
    stream = ExampleStream(
        corpus, tasks, tokenizer, arguments.seed, short_tasks(lexicon), GROWN if begun else 0.0
    )
    budget = Budget(arguments.steps, None if arguments.steps else arguments.minutes or 60)
    training = Training(model, stream, budget, arguments.checkpoint, arguments.rate)
    if not arguments.export:
        training.run()
    elif arguments.average:
        model.load_state_dict(mean_weights([arguments.checkpoint, *arguments.average]))
    export(model, tokenizer, lexicon, arguments.output)


if __name__ == "__main__":
    main()
