"""Measure it: ``python benchmarks/convergence/run.py``. Runs that are in runs.jsonl already are not made again."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from convergence.picture import draw_drifts, draw_losses
from convergence.report import write_readme, write_results
from convergence.runs import CASES, Run, Store, study, tuning_runs, verdict_runs
from convergence.training import prepare, train
from wavelet.report.progress import Bar

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    """Tune, then the verdict's runs, then the study; then write the results, the tables and the pictures."""
    arguments = _arguments()
    folder: Path = arguments.folder
    store = Store(folder / "runs.jsonl", folder / "results.json")
    if not arguments.report_only:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.processes, mp_context=spawn, initializer=prepare) as pool:
            while runs := [run for case in CASES for run in tuning_runs(store, case)]:
                _make("tuning", runs, store, pool)
            for title, stage in (("verdict", verdict_runs), ("study", study)):
                _make(title, [run for case in CASES for run in stage(store, case)], store, pool)
    write_results(store, folder / "results.json")
    write_readme(store, folder / "README.md")
    draw_losses(store, folder / "losses.png")
    draw_drifts(store, folder / "drifts.png")


def _make(title: str, runs: Iterable[Run], store: Store, pool: ProcessPoolExecutor) -> None:
    missing = [run for run in dict.fromkeys(runs) if run not in store.records]
    with Bar(title, len(missing)) as bar:
        for done, future in enumerate(as_completed([pool.submit(train, run) for run in missing]), start=1):
            record = future.result()
            store.add(record)
            run = record.run
            note = f"{run.case.name} {run.rule} {run.resync} {run.rate:g} seed {run.seed}"
            bar.say(f"{title} {done}/{len(missing)}: {note}: loss {record.loss:.4f} in {record.seconds:.0f} s")
            bar.update(done)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where runs.jsonl and the results go")
    parser.add_argument("--processes", type=int, default=2, help="runs side by side; results do not depend on it")
    parser.add_argument("--report-only", action="store_true", help="no runs: tables and pictures of what is there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
