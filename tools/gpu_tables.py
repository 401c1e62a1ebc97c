#!/usr/bin/env python3
"""Writes the tables of GPU figures in README.md and docs/kernels/ from bench/history/h200/.

  tools/gpu_tables.py           rewrites what lies between the marks <!-- gpu: NAME --> and <!-- end -->
  tools/gpu_tables.py --check   exit code 1 when a table is not what the measurements say
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY_GBPS = 4231.0

# Peers on the same GPU and work (FlashKDA 1ce47ea, cuDNN frontend of September 2026), ms:
# (tokens, sequences, heads) -> FlashKDA, cuDNN with normal gates, cuDNN with slow gates.
KDA_PEERS = {
    (8192, 1, 96): ("1.397", "1.087", "2.346"),
    (8192, 8, 96): ("1.192", "0.850", ""),
    (8192, 6, 96): ("1.391", "1.257", ""),
    (8192, 1, 64): ("1.186", "0.551", ""),
    (8192, 1, 32): ("0.978", "0.280", "2.253"),
    (8192, 1, 12): ("0.854", "0.110", "2.164"),
    (65536, 1, 12): ("6.56", "0.785", "17.8"),
    (65536, 1, 4): ("6.09", "0.269", "17.9"),
}


def measured():
    """The latest line of each bench and case; files are named by date, so later ones win."""
    lines = {}
    for path in sorted((ROOT / "bench" / "history" / "h200").glob("*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            case = {k: v for k, v in line.items()
                    if k in ("shape", "tokens", "sequences", "heads", "gates", "segment")}
            lines[(line["bench"], json.dumps(case, sort_keys=True))] = line
    return list(lines.values())


def kda_prefill(lines):
    """The best mode (whole or in segments) of each case by normal gates, and the same mode's time
    with slow ones."""
    best = {}
    slow = {}
    for line in lines:
        if line["bench"] == "kda_prefill" and line["gates"] == "slow":
            case = (line["tokens"], line["sequences"], line["heads"], line["segment"])
            slow[case] = f"{line['us'] / 1e3:.3f}"
        if line["bench"] == "kda_prefill" and line["gates"] == "normal":
            case = (line["tokens"], line["sequences"], line["heads"])
            if case not in best or line["us"] < best[case]["us"]:
                best[case] = line
    rows = ["| T, sequences, H | ms | slow gates | FlashKDA | cuDNN, normal gates |"
            " cuDNN, slow gates | bytes at copy speed |",
            "|---|---|---|---|---|---|---|"]
    for case, peers in KDA_PEERS.items():
        if case not in best:
            continue
        line = best[case]
        mode = f" (segments of {line['segment']})" if line["segment"] else ""
        floor = line["bytes"] / COPY_GBPS / 1e6
        rows.append(f"| {case[0]}, {case[1]}, {case[2]} | **{line['us'] / 1e3:.3f}**{mode} | "
                    f"{slow.get((*case, line['segment']), '')} | "
                    f"{' | '.join(peers)} | {floor:.2f} |")
    return rows


def others(lines):
    rows = ["| bench | case | µs | share of the limit |", "|---|---|---|---|"]
    for line in sorted(lines, key=lambda x: (x["bench"], x.get("shape", ""))):
        if line["bench"] != "kda_prefill" and "us" in line:
            share = line.get("share")
            rows.append(f"| {line['bench']} | {line.get('shape', '')} | {line['us']:.1f} | "
                        f"{'' if share is None else f'{100 * share:.0f}%'} |")
    return rows


TABLES = {"kda_prefill": kda_prefill, "others": others}


def rewrite(text, lines):
    def table(match):
        return "\n".join([match.group(1), *TABLES[match.group(2)](lines), "<!-- end -->"])
    return re.sub(r"(<!-- gpu: (\w+) -->)\n.*?<!-- end -->", table, text, flags=re.S)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    lines = measured()
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs" / "kernels").glob("*.md"))]:
        text = path.read_text()
        new = rewrite(text, lines)
        if new != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(new)
    if check and stale:
        print("gpu_tables: not what bench/history/h200 says:", ", ".join(stale), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
