#!/usr/bin/env python3
"""check_layers.py must find what it is there to find: each case breaks a small sound tree once."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_layers  # noqa: E402

SOUND = {
    "docs/architecture.md": """# Title

## Modules

| level | module | holds | may include | outside libraries |
|---|---|---|---|---|
| 0 | `low` | things | – | fmt |
| 1 | `left`, `right` | things | `low` | – |
| 2 | `app` | the program | everything but `testing` | CLI11 |
| – | `testing` | helpers | `low` | – |

## Next
""",
    "src/CMakeLists.txt": "triax_module(low)\ntriax_module(left DEPS low)\n",
    "src/low/low.h": "#pragma once\n#include <fmt/core.h>\n",
    "src/low/low_avx2.cc": '#include <immintrin.h>\n#include "low/lanes.h"\n',
    "src/low/lanes.h": "#pragma once\n#include <immintrin.h>\n",
    "src/left/left.h": '#pragma once\n#include "low/low.h"\n',
    "src/left/a/a.h": "#pragma once\n",
    "src/left/b/b.h": '#pragma once\n#include "left/a/a.h"\n',
    "src/left/left_test.cc": '#include <gtest/gtest.h>\n#include "left/cases.h"\n'
                             "TEST(A, B) {\n" + "  g();\n" * 90 + "}\n",
    "src/left/cases.h": '#pragma once\n#include <gtest/gtest.h>\n#include "testing/testing.h"\n',
    "src/right/right.cc": '#include "low/low.h"\n#if defined(__x86_64__)\n#endif\n'
                          "int f() {\n" + "  g();\n" * 58 + "}\n",
    "src/app/main.cc": '#include <CLI/CLI.hpp>\n#include "right/right.h"\n'
                       'const char* s = R"(#if { " )"; // {\n',
    "src/right/right.h": "#pragma once\nstruct S {\n" + "  int m(int);\n" * 70 + "};\n",
    "src/testing/testing.h": '#pragma once\n#include "low/low.h"\n',
    "tests/whole_test.cc": '#include "left/left.h"\n#include "golden.h"\n',
    "tests/golden.h": '#pragma once\n#include "testing/testing.h"\n',
    "fuzz/x_fuzz.cc": '#include "right/right.h"\n',
    "src/left/left_cuda.cu": '#include <cuda_runtime.h>\n#include "left/left.cuh"\n'
                             "#if defined(__CUDA_ARCH_FEAT_SM90_ALL)\n#endif\n"
                             "__global__ void k() {\n" + "  g();\n" * 118 + "}\n",
    "src/left/left.cuh": "#pragma once\n#include <cuda_bf16.h>\n",
}

# name -> (files that replace those of the sound tree, a part of the expected message)
CASES = {
    "an upward include": (
        {"src/low/low.cc": '#include "left/left.h"\n'}, "'low' may not include 'left'"),
    "a sideways include": (
        {"src/left/l.cc": '#include "right/right.h"\n'}, "'left' may not include 'right'"),
    "a forbidden include in a test": (
        {"src/left/left_test.cc": '#include "right/right.h"\n'}, "'left' may not include 'right'"),
    "a cycle of modules": (
        {"src/left/l.cc": '#include "right/right.h"\n', "src/right/r.cc": '#include "left/left.h"\n'},
        "modules include each other in a circle: right -> left -> right"),
    "a cycle of folders in one module": (
        {"src/left/a/a.h": '#pragma once\n#include "left/b/b.h"\n'},
        "folders include each other in a circle: src/left/a -> src/left/b -> src/left/a"),
    "testing outside tests": (
        {"src/left/l.cc": '#include "testing/testing.h"\n'}, "only tests"),
    "gtest outside tests": (
        {"src/left/l.cc": "#include <gtest/gtest.h>\n"}, "<gtest/gtest.h> outside tests"),
    "a library that the row does not name": (
        {"src/left/l.cc": "#include <nlohmann/json.hpp>\n"}, "'left' may not use nlohmann-json"),
    "intrinsics outside their files": (
        {"src/left/l_cpu.cc": "#include <immintrin.h>\n"}, "<immintrin.h> outside"),
    "a header of intrinsics that others include": (
        {"src/low/low_cpu.cc": '#include "low/lanes.h"\n'}, "lanes.h:2: <immintrin.h> outside"),
    "a header with tests' tools that the library includes": (
        {"src/left/l.cc": '#include "left/cases.h"\n'}, "cases.h:3: only tests"),
    "a long test": (
        {"src/left/left_test.cc": "TEST(A, B) {\n" + "  g();\n" * 99 + "}\n"},
        "left_test.cc:1: a function of 101 lines"),
    "a relative include": (
        {"src/left/l.cc": '#include "left.h"\n'}, '"left.h" is not a path from src/'),
    "an ifdef": (
        {"src/left/l.cc": "#ifdef NDEBUG\n#endif\n"}, "conditional compilation: #ifdef NDEBUG"),
    "an if": (
        {"src/left/l.cc": "#if 0\n#endif\n"}, "conditional compilation: #if 0"),
    "a macro in a header": (
        {"src/left/left.h": "#pragma once\n#define X 1\n"}, "a macro in a header"),
    "a header without pragma once": (
        {"src/left/left.h": "int x;\n"}, "no '#pragma once'"),
    "a long file": (
        {"src/left/l.cc": "int x;\n" * 601}, "601 lines, at most 600"),
    "a long function": (
        {"src/left/l.cc": "namespace n {\nint f(int a) {\n" + "  a = [&] { return a; }();\n" * 59 +
                          "}\n}\n"}, "l.cc:2: a function of 61 lines"),
    "a long member function": (
        {"src/left/l.cc": "class C {\n  int f() const {\n" + "    // {\n" * 59 + "  }\n};\n"},
        "l.cc:2: a function of 61 lines"),
    "a CUDA header outside CUDA code": (
        {"src/left/l.cc": "#include <cuda_runtime.h>\n"}, "<cuda_runtime.h> outside"),
    "an architecture of CUDA outside CUDA code": (
        {"src/left/l.cc": "#if __CUDA_ARCH__ >= 900\n#endif\n"}, "conditional compilation"),
    "a long kernel": (
        {"src/left/k_cuda.cu": "__global__ void k() {\n" + "  g();\n" * 119 + "}\n"},
        "k_cuda.cu:1: a kernel of 121 lines, at most 120"),
    "a folder without a row": (
        {"src/other/x.h": "#pragma once\n"}, "src/other: has no row"),
    "a row without a folder": (
        {"docs/architecture.md": SOUND["docs/architecture.md"].replace("`right`", "`right`, `far`")},
        "the module 'far' has no folder"),
    "a row that names a higher level": (
        {"docs/architecture.md": SOUND["docs/architecture.md"].replace("things | – |",
                                                                      "things | `left` |")},
        "which is not lower"),
    "no table": (
        {"docs/architecture.md": "# Title\n"}, "no module table"),
    "a link that the table does not allow": (
        {"src/CMakeLists.txt": "triax_module(low DEPS left)\n"}, "'low' links 'left'"),
}


def violations(changes):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in {**SOUND, **changes}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_layers.Checker(root).run()


def main():
    failures = []
    found = violations({})
    if found:
        failures.append(f"the sound tree: {found}")
    for name, (changes, expected) in CASES.items():
        found = violations(changes)
        if not any(expected in message for message in found):
            failures.append(f"{name}: expected '{expected}', found {found}")
    for failure in failures:
        print(failure)
    print(f"check_layers_selftest: {len(CASES) + 1} cases, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
