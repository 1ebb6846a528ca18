"""Write the results of `benchmarks.run` as a page with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recal.comparison.markdown import markdown_table


def write_page(results: dict[str, Any], folder: Path) -> Path:
    """Write speed.md and growth.png from the results, and return the page's path."""
    draw_growth([r for r in results["growth"] if r["who"] == "ReCal"], folder / "growth.png")
    machine = results["machine"]
    lines = [
        "# Speed",
        "",
        "Made by `make bench`. CPU seconds, the least of several turns; contestants took turns in one process. "
        f"Python {machine['python']}, numpy {machine['numpy']}, numba {machine['numba']}, {machine['cores']} cores.",
        "",
        *([f"From an earlier run: {', '.join(results['earlier'])}.", ""] if results.get("earlier") else []),
        "## Targets",
        "",
        *markdown_table(["what", "figure", "target", "met"], targets(results)),
        "",
        "## One temperature",
        "",
        *markdown_table(
            ["size", "who", "CPU s", "times recal's", "error of beta"],
            [
                [r["size"], r["who"], f"{r['cpu']:.5f}", f"{r['ratio']:.2f}", _short(r["error"])]
                for r in results["temperature"]
            ],
        ),
        "",
        f"Readings of the logits at {results['passes']['size']}:",
        "",
        *markdown_table(
            ["in", "readings", "times a bare sum"],
            [[r["kind"], str(r["passes"]), f"{r['ratio']:.1f}"] for r in results["passes"]["rows"]],
        ),
        "",
        "## A whole ReCal fit: 20 views, 200 iterations",
        "",
        *markdown_table(
            ["size", "who", "CPU s", "share of the whole fit"],
            [[r["size"], r["who"], f"{r['cpu']:.3f}", f"{r['ratio']:.2f}"] for r in results["fit"]],
        ),
        "",
        "## A whole fit of ViewStacking",
        "",
        *markdown_table(["size", "CPU s"], [[r["what"], f"{r['cpu']:.2f}"] for r in results["stack"]]),
        "",
        "## How a fit's cost grows",
        "",
        "![CPU seconds of ReCal over samples, classes, views and iterations](growth.png)",
        "",
        *markdown_table(
            ["method", "dimension", "sizes", "CPU s", "exponent"],
            [
                [
                    r["who"],
                    r["axis"],
                    ", ".join(map(str, r["sizes"])),
                    ", ".join(f"{c:.3f}" for c in r["cpu"]),
                    f"{r['exponent']:.2f}",
                ]
                for r in results["growth"]
            ],
        ),
        "",
        "## Replay",
        "",
        *markdown_table(["what", "seconds"], [[r["what"], f"{r['seconds']:.3g}"] for r in results["replay"]]),
        "",
        "## Expected calibration error",
        "",
        *markdown_table(
            ["size", "who", "CPU s", "times recal's"],
            [[r["size"], r["who"], f"{r['cpu']:.4f}", f"{r['ratio']:.2f}"] for r in results["ece"]],
        ),
        "",
        "## Start-up (CPU seconds)",
        "",
        *markdown_table(["what", "seconds"], [[r["what"], f"{r['seconds']:.2f}"] for r in results["start_up"]]),
    ]
    if "disk" in results:
        lines += [
            "",
            "## Views that outgrow memory: 200 iterations",
            "",
            *markdown_table(
                ["size", "views in", "CPU s", "wall s", "peak memory, GB"],
                [
                    [r["size"], r["how"], f"{r['cpu']:.1f}", f"{r['wall']:.1f}", f"{r['peak_gb']:.2f}"]
                    for r in results["disk"]
                ],
            ),
        ]
    notes = folder / "notes.md"
    if notes.exists():
        lines += ["", notes.read_text().strip()]
    page = folder / "speed.md"
    page.write_text("\n".join(lines) + "\n")
    return page


def targets(results: dict[str, Any]) -> list[list[str]]:
    """Return a row for each target: what, the figure, the target, whether it is met."""
    largest = results["temperature"][-1]["size"]
    one = {r["who"]: r for r in results["temperature"] if r["size"] == largest}
    fit = {r["who"]: r for r in results["fit"] if r["size"].startswith(largest)}
    ece = {r["who"]: r for r in results["ece"]}
    rows = []

    def add(what: str, figure: float, target: float, unit: str, least: bool = False) -> None:
        met = figure >= target if least else figure <= target
        bound = "at least" if least else "at most"
        rows.append([what, f"{figure:.3g} {unit}", f"{bound} {target:.3g}", "yes" if met else "**no**"])

    if peer := fit.get("scikit-learn, one temperature"):
        whole = fit["recal, the whole fit"]["cpu"]
        add(f"whole fit at {largest}, of one temperature of scikit-learn", whole / peer["cpu"], 0.5, "times")
    small = results["fit"][0]
    add(f"whole fit at {small['size']}", small["cpu"], 0.1, "s")
    add(f"whole fit of ViewStacking at {results['stack'][-1]['what']}", results["stack"][-1]["cpu"], 3.0, "s")
    for name in ("scikit-learn", "probmetrics"):
        if name in one:
            add(f"one temperature at {largest}, less CPU than {name}", one[name]["ratio"], 20.0, "times", least=True)
            add(f"its error, of that of {name}", one["recal"]["error"] / max(one[name]["error"], 1e-16), 1.0, "times")
    reads = results["passes"]["rows"]
    add("one temperature, readings of the logits", sum(r["passes"] for r in reads), 12, "")
    for r in reads:
        add(f"a reading in {r['kind']}, of a bare sum", r["ratio"], 3.0, "times")
    add("one temperature in all, of a bare sum", 1 / one["a bare sum"]["ratio"], 36.0, "times")
    for r in [*results["replay"], *results["start_up"]]:
        if "target" in r:
            add(r["what"], r["seconds"], r["target"], "s")
    add("ECE, of a bare sum", 1 / ece["a bare sum"]["ratio"], 2.5, "times")
    for r in results.get("disk", []):
        if r["how"] == "disk":
            add(f"memory of a fit of {r['size']} from disk", r["peak_gb"], 2.0, "GB")
    return rows


def draw_growth(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    figure, axes = plt.subplots(1, len(rows), figsize=(3 * len(rows), 2.8), sharey=True)
    for axis, row in zip(axes, rows, strict=True):
        axis.loglog(row["sizes"], row["cpu"], "o-", color="black")
        axis.set_title(f"{row['axis']}: exponent {row['exponent']:.2f}", fontsize=10)
        axis.set_xticks(row["sizes"], [f"{size:,}" for size in row["sizes"]], fontsize=8)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel("CPU seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _short(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}"
