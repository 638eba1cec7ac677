"""The report of one or more sweeps: a page that stands alone, one CSV, one Markdown table, the figures as files.

    python -m analysis.report runs/side_by_side [more folders] [--out folder]

Several folders are merged into one comparison; cells of different machines stay apart. The page needs no network.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from analysis import (
    checks,
    equal_quality,
    equalities,
    figures,
    findings,
    frontier,
    frontier_figures,
    growth,
    peers,
    roofline,
    roofline_figures,
    statistics,
    tables,
    task_equalities,
    task_figures,
    tasks,
)
from analysis.choices import Choice
from analysis.frames import Frames, load
from analysis.summary import axes_varying, summarise
from analysis.tables import Table

DPI = 160
LEGEND = "n: requests in rounds; ≤: upper bound; †: contended; ‡: extrapolated"


@dataclass(frozen=True)
class Picture:
    """A drawn figure with what stands around it."""

    name: str
    title: str
    sentence: str
    source: str  # data URI of the SVG
    section: str  # of the page: tasks, frontiers, or that of all other figures
    wide: bool


def terminal_table(folder: str | Path | Frames, *, width: int = 160) -> RichTable:
    """The headline table of a sweep, for the end of its run, with as many columns as fit `width` characters.

    Raises:
        ValueError: the folder is missing or holds no finished unit.
    """
    frames = folder if isinstance(folder, Frames) else load(folder)
    table = tables.headline(frames)
    dispensable = ["parameters", "entropy, nats", "n", "peak", "tokens / forward", "TTFT, ms", "slope", "state"]
    while dispensable and sum(_widths(table)) + 3 * len(table.heads) > width:
        table = table.without(dispensable.pop(0))
        if not dispensable:
            table = table.without_intervals()
    rich = RichTable(
        title=f"{' + '.join(path.resolve().name for path in frames.folders)}, {table.title}",
        caption=f"{tables.contents(frames)}. {LEGEND}; {findings.intervals_note(frames)}",
        title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, min_width=min(width, 72), pad_edge=False,
    )  # fmt: skip
    for index, (head, wanted) in enumerate(zip(table.heads, _widths(table), strict=True)):
        rich.add_column(head, justify="left" if index == 0 else "right", width=wanted)
    for row in table.rows:
        rich.add_row(*(escape(value) for value in row))
    return rich


def _widths(table: tables.Table) -> list[int]:
    """Characters each column needs: its longest value, or the longest word of its head."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.heads)
    return [max(map(len, [*head.split(), *values])) for head, values in zip(table.heads, columns, strict=True)]


def write_report(frames: Frames, out: Path) -> list[Path]:
    """Write index.html, results.csv, results.md and figures/ into `out`, with tasks and frontiers CSVs of these; the
    paths, page first.

    Raises:
        OSError: `out` cannot be written.
    """
    (out / "figures").mkdir(parents=True, exist_ok=True)
    pictures = _pictures(frames, out / "figures")
    page, csv, markdown = out / "index.html", out / "results.csv", out / "results.md"
    environment = Environment(
        loader=PackageLoader("analysis", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.write_text(
        environment.get_template("report.html.j2").render(**_content(frames), pictures=pictures), encoding="utf-8"
    )
    tables.results(frames).to_csv(csv, index=False)
    markdown.write_text(_markdown(frames), encoding="utf-8")
    return [page, csv, markdown, *_more_results(frames, out), out / "figures"]


def _more_results(frames: Frames, out: Path) -> list[Path]:
    """tasks.csv and tasks.md, frontier.csv, equal_quality.csv, where there is something in them."""
    paths = []
    more = {"tasks.csv": tasks, "frontier.csv": frontier, "equal_quality.csv": equal_quality}
    for name, results in ((name, module.results(frames)) for name, module in more.items()):
        if len(results):
            results.to_csv(out / name, index=False)
            paths.append(out / name)
    if told := _of_tasks(frames):
        parts = [f"{each.title}:\n\n{each.markdown()}" for each in told]
        (out / "tasks.md").write_text("\n\n".join([*parts, tasks.note(frames)]) + "\n", encoding="utf-8")
        paths.insert(1, out / "tasks.md")
    return paths


def _pictures(frames: Frames, folder: Path) -> list[Picture]:
    """Draw, save as PNG and SVG, and keep the SVG for the page."""
    pictures = []
    choices = figures.choose(frames)
    if len(frames.ok) and axes_varying(frames):
        choices.insert(0, Choice("headline", "In one picture", figures.headline, findings.latency))
    sections = {"": choices, "tasks": task_figures.choose(frames), "frontiers": frontier_figures.choose(frames)}
    for section, choice in ((section, choice) for section, of_it in sections.items() for choice in of_it):
        figure = choice.draw(frames)
        svg = _svg(figure)
        (folder / f"{choice.name}.svg").write_bytes(svg)
        figure.savefig(folder / f"{choice.name}.png", dpi=DPI)
        source = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
        wide = figure.get_figwidth() > 9
        pictures.append(Picture(choice.name, choice.title, choice.sentence(frames), source, section, wide))
    return pictures


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    figure.set_layout_engine("none")  # laid out once; the next file of it keeps the places
    return file.getvalue()


def _content(frames: Frames) -> dict[str, object]:
    """What the page says besides its figures."""
    equal = equalities.equalities(frames)
    most = int(summarise(frames)["requests"].max())
    reasons = [statistics.percentile([0.0] * most, percent)[1] for percent in (90, 99)]
    return {
        "title": " + ".join(path.resolve().name for path in frames.folders),
        "contents": tables.contents(frames),
        "headline": tables.headline(frames),
        "equal": [row for row in equal if row.equal],
        "unequal": [row for row in equal if not row.equal],
        "checks": checks.checks(frames),
        "failures": tables.failures(frames),
        "contended": tables.contended(frames),
        "extrapolated": tables.extrapolated(frames),
        "peers": peers.against_peers(frames),
        "roofline": roofline_figures.table(frames),
        "no_roofline": roofline.missing(frames),
        "growth": growth.table(frames),
        "tasks": _of_tasks(frames),
        "tasks_note": tasks.note(frames),
        "equal_quality": equal_quality.table(frames),
        "equal_quality_note": equal_quality.note(frames),
        "frontier_note": frontier.note(frames),
        "cells": tables.every_cell(frames),
        "samples": tables.samples(frames),
        "notes": frames.notes,
        "intervals": findings.intervals_note(frames),
        "percentiles": "; ".join(reason for reason in reasons if reason),
        "facts": _facts(frames),
        "commands": _commands(frames),
    }


def _of_tasks(frames: Frames) -> list[Table]:
    """Tables of tasks that have rows, who wins first."""
    return [*tasks.tables(frames), *(each for each in (task_equalities.table(frames),) if each.rows)]


def _facts(frames: Frames) -> list[tuple[str, str]]:
    """Machine, versions, corpus: every distinct value, so that merged sweeps show both."""
    runs = frames.runs
    columns = {
        "machine": "machine", "CPU": "cpu", "GPU": "gpu", "threads": "device.threads", "torch": "torch_version",
        "transformers": "transformers_version", "Python": "python_version", "code": "code",
        "energy from": "energy_source", "weights from": "train.source", "corpus, SHA-256": "corpus_sha256",
    }  # fmt: skip
    facts = []
    for name, column in columns.items():
        values = (
            sorted({f"{value:g}" if isinstance(value, float) else str(value) for value in runs[column].dropna()})
            if column in runs
            else []
        )
        facts.append((name, ", ".join(values) or "–"))
    known = frames.ok[frames.ok["corpus_sha256"].notna()]
    if len(known):
        same = bool(known["corpus_is_zoo_corpus"].all())
        facts.append(
            ("corpus of the training", "the same text" if same else "NOT the text that the models were trained on")
        )
    seconds = frames.ok[["import_s", "load_s", "compile_s", "warmup_s", "steady_s"]].sum()
    facts.append(
        ("seconds in all", ", ".join(f"{str(name).removesuffix('_s')} {value:.1f}" for name, value in seconds.items()))
    )
    busy = frames.ok[["load_before", "load_after", "steal_fraction"]].max()
    facts.append(("highest load before / after, steal", f"{busy.iloc[0]:.2f} / {busy.iloc[1]:.2f}, {busy.iloc[2]:.1%}"))
    return facts


def _commands(frames: Frames) -> list[str]:
    names = sorted(set(frames.runs["sweep.name"].dropna()))
    lines = [f"python -m paradigms -m experiment={name}" for name in names]
    return [*lines, f"python -m analysis.report {' '.join(str(path) for path in frames.folders)}"]


def _markdown(frames: Frames) -> str:
    headline = tables.headline(frames)
    machines = ", ".join(str(name) for name in dict.fromkeys(frames.runs["machine"].dropna()))
    parts = [f"{findings.capital(headline.title)}. {machines}.", headline.markdown(),
             f"{tables.contents(frames)}. {LEGEND}; {findings.intervals_note(frames)}."]  # fmt: skip
    compared = peers.against_peers(frames)
    if compared.rows:
        parts += [f"{compared.title}:", compared.markdown()]
    of_quality = [*_of_tasks(frames), equal_quality.table(frames)]
    for told in (each for each in of_quality if each.rows):
        parts += [f"{told.title}:", told.markdown()]
    failed = tables.failures(frames)
    if failed.rows:
        parts += [f"{failed.title}:", failed.markdown()]
    return "\n\n".join([*parts, *frames.notes]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.report", description="Figures, page and tables of finished sweeps."
    )
    parser.add_argument(
        "folders", nargs="+", metavar="folder", help="a sweep's folder, such as runs/side_by_side; several are merged"
    )
    parser.add_argument("--out", help="where to write (default: report/ inside the first folder)")
    options = parser.parse_args(arguments)
    try:
        frames = load(*options.folders)
        paths = write_report(frames, Path(options.out or Path(options.folders[0]) / "report"))
    except ValueError as error:
        parser.exit(2, f"analysis.report: {error}\n")
    except OSError as error:
        parser.exit(
            2, f"analysis.report: cannot write {error.filename}: {error.strerror}; name another place with --out\n"
        )
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(terminal_table(frames, width=console.width))
    for note in frames.notes:
        print(f"note: {note}", file=sys.stderr)
    bad = int((frames.runs["status"] != "ok").sum())
    if bad:
        print(f"{bad} unit{'s' * (bad > 1)} did not succeed; the report lists them")
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
