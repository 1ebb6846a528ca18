"""Write the page of all examples' results from what they recorded: `make examples` ends with it.

Run:   python examples/results.py RECORDS --out docs/results/examples.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from recal.comparison.tables import markdown_table

EXPECTED = ("file_types", "hugging_face_images", "imagenet", "languages", "tables", "time_series")
ABOUT = """# Examples with outside models

Models that others trained (languages, file types, ImageNet) or that are trained on the spot, on inputs that anybody can
install, each by one command. This page is written by `make
examples` from what the examples found; nothing in it is typed by hand.

Half of the samples fits, the other half judges. One method that needs no views and one that does are chosen by the NLL
of samples left out of the fitting half. Views are called worth it if the judging half shows that more can be automated
with them, at 1 % or 5 % error, beyond chance (the 97.5 % interval of the paired difference). The guarantees hold with
95 % confidence for either choice. The rule was set before any share was seen.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the folder of .json files")
    parser.add_argument("--out", type=Path, required=True, help="the Markdown page to write")
    options = parser.parse_args()
    records = [json.loads(path.read_text()) for path in sorted(options.records.glob("*.json"))]
    if not records:
        parser.error(f"{options.records} holds no .json files; run the examples with --record first")
    lacking = [f"`{name}.py`" for name in EXPECTED if not (options.records / f"{name}.json").exists()]
    said = [f"Left out of this run: {', '.join(lacking)}.", ""] if lacking else []
    parts = [line for one in records for line in part(one)]
    options.out.write_text("\n".join([ABOUT, *said, *summary(records), "", *parts]))
    print(f"Written to {options.out}")


def summary(records: list[dict]) -> list[str]:
    head = ["example", "samples, classes, views", "without views", "with", "gain at 1 %", "at 5 %", "worth it", "s"]
    rows = []
    for record in records:
        found = record["verdict"]
        gains = [f"{100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})" for gain, (low, high) in
                 zip(found["gains"], found["intervals"])]  # fmt: skip
        size = record["views"].removeprefix("Views: ").removesuffix(", labelled").replace("transformations", "views")
        rows.append([f"`{record['example']}`", size, found["plain"], found["with_views"], *gains,
                     "yes" if found["worth"] else "no", f"{record['seconds']}"])  # fmt: skip
    return ["Gains are points of all answers that can be automated in addition.", "", *markdown_table(head, rows)]


def part(record: dict) -> list[str]:
    """One example: every method on the judging half, and the example's own last words."""
    head = ["method", "error", "ECE", "NLL", "automated at 1 %", "at 5 %", "passes beyond the first"]
    rows = [
        [name, f"{row['error']:.3f}", f"{row['ece']:.4f}", f"{row['nll']:.4f}",
         *(f"{share:.1%}" for share in row["automated"]), f"{row['passes']:.2f}"]
        for name, row in record["table"].items()
    ]  # fmt: skip
    return [
        f"## {record['example'].removesuffix('.py').replace('_', ' ').capitalize()}",
        "",
        f"{record['views'].removeprefix('Views: ')}; judged on {record['judged']:,}. {record['seconds']} s in all, "
        f"{record['collected']} s of which asked the model.",
        "",
        *markdown_table(head, rows, align="lrrrrrr"),
        "",
        *(f"> {line}" for line in record["verdict"]["said"]),
        "",
    ]


if __name__ == "__main__":
    main()
