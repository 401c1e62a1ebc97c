#!/usr/bin/env python3
"""The files of the page as web/manifest.json lists them.

  tools/page_files.py OUT.cc [DEPFILE]   writes them as C++ for src/server/page.h

Files that compress are stored gzipped, always to the same bytes.
"""
import glob
import hashlib
import json
import os
import sys
import zlib

WEB = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "web")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def load():
    """(policy, {served path: (content type, source path)}); says what is missing."""
    with open(os.path.join(WEB, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    files = {}
    for served, source in manifest["files"].items():
        sources = [os.path.join(WEB, source)]
        if served.endswith("/*"):
            sources = sorted(glob.glob(source))
        if not sources or not all(os.path.exists(path) for path in sources):
            sys.exit(f"page_files: {source} is not here; tools/setup.sh installs what the page needs")
        for path in sources:
            name = served[:-1] + os.path.basename(path) if served.endswith("/*") else served
            files[name] = (TYPES[os.path.splitext(path)[1]], path)
    return "; ".join(manifest["policy"]), files


def gzipped(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush()
    size = (zlib.crc32(data) & 0xFFFFFFFF).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\2\xff" + body + size


def array(name, data):
    numbers = ",".join(str(byte) for byte in data)
    return f"constexpr unsigned char {name}[] = {{{numbers}}};\n"


def source(policy, files):
    arrays, rows = [], []
    for i, (path, (kind, where)) in enumerate(sorted(files.items())):
        with open(where, "rb") as file:
            data = file.read()
        packed = gzipped(data)
        use_packed = len(packed) < 0.9 * len(data)
        tag = hashlib.sha256(data).hexdigest()[:20]
        arrays.append(array(f"kFile{i}", packed if use_packed else data))
        rows.append(f'    {{"{path}", "{kind}", "{tag}", {"true" if use_packed else "false"}, '
                    f"{len(data)}, kFile{i}}},\n")
    return ("// Made by tools/page_files.py; do not edit.\n#include \"server/page.h\"\n\n"
            "namespace triax::server {\nnamespace {\n\n" + "".join(arrays) +
            "\nconstexpr PageFile kFiles[] = {\n" + "".join(rows) + "};\n\n}  // namespace\n\n"
            "std::span<const PageFile> page_files() { return kFiles; }\n\n"
            f"std::string_view page_policy() {{ return R\"({policy})\"; }}\n\n"
            "}  // namespace triax::server\n")


def main():
    policy, files = load()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(source(policy, files))
    if len(sys.argv) > 2:
        inputs = [os.path.join(WEB, "manifest.json"), os.path.abspath(__file__)]
        inputs += [path for _, path in files.values()]
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(f"{sys.argv[1]}: {' '.join(inputs)}\n")


if __name__ == "__main__":
    main()
