#!/usr/bin/env python3
"""Checks that the source keeps the layers of docs/architecture.md and the sizes of the style.

  tools/check_layers.py [--root FOLDER]

The table under "## Modules" of docs/architecture.md is the rule: a module includes only what its
row names, from lower levels. Exit code 0: kept; 1: each violation on a line of its own.
"""

import argparse
import re
import sys
from pathlib import Path

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
KERNEL_LINES_MAX = 120  # of a __global__ function
TEST_LINES_MAX = 100
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
HEADERS = {".h", ".cuh"}

# Conditional compilation is allowed in these folders, and elsewhere only in these words:
CONDITIONAL_FOLDERS = ("src/device/cuda/",)
CONDITIONALS = {
    "#if defined(__x86_64__)": "instruction sets and the pause instruction of x86",
}
# In CUDA code the architecture that is compiled for.
CUDA_CONDITIONAL = re.compile(r"#\s*(if|elif)\b.*__CUDA_ARCH")

# Header of an outside library -> the name in the table's last column.
LIBRARIES = {
    r"fmt/": "fmt",
    r"nlohmann/": "nlohmann-json",
    r"CLI/": "CLI11",
    r"pcre2\.h": "PCRE2",
    r"histedit\.h|editline/": "libedit",
    r"liburing\.h": "liburing",
    r"hiredis/": "hiredis",
    r"boost/": "Boost",
}
# Of these, only tests, benches and src/testing may use:
TEST_LIBRARIES = re.compile(r"gtest/|gmock/|benchmark/")
INTRINSICS = re.compile(r"\w*intrin\.h$")
CUDA_HEADERS = re.compile(r"cuda|cublas|cooperative_groups|mma\.h|cub/")


class Module:
    def __init__(self, level, name, includes, libraries):
        self.level = level
        self.name = name
        self.includes = includes
        self.libraries = libraries


def read_table(root):
    """The rows of the module table: {name: Module}, and what is wrong with the table itself."""
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Modules\n")
    modules, errors = {}, []
    for line in section.split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 5 or not re.match(r"\d+$|–$", cells[0]):
            continue
        level = 99 if cells[0] == "–" else int(cells[0])
        libraries = {name.strip() for name in cells[4].split(",")}
        for name in re.findall(r"`(\w+)`", cells[1]):
            modules[name] = Module(level, name, re.findall(r"`(\w+)`", cells[3]), libraries)
            if cells[3] == "everything but `testing`":
                modules[name].includes = None
    if not modules:
        errors.append("docs/architecture.md: no module table under '## Modules'")
    for module in modules.values():
        if module.includes is None:
            module.includes = [m for m in modules if m not in (module.name, "testing")]
        for name in module.includes:
            if name not in modules:
                errors.append(f"docs/architecture.md: '{module.name}' may include '{name}', "
                              "which has no row")
            elif modules[name].level >= module.level:
                errors.append(f"docs/architecture.md: '{module.name}' (level {module.level}) may "
                              f"include '{name}' (level {modules[name].level}), which is not lower")
    return modules, errors


def without_comments_and_strings(text):
    """The same text, line by line, with the inside of comments and literals blanked."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.DOTALL)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


CONTAINERS = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:(?:inline|static)\s+)?"
                        r"(?:namespace|class|struct|union|enum|extern\s*$)\b", re.DOTALL)


def functions(text):
    """(first line, length, "function" or "kernel") of every function body, lambdas inside one being
    part of it."""
    code = without_comments_and_strings(text)
    code = re.sub(r"^[ \t]*#.*?(?<!\\)$", lambda m: re.sub(r"[^\n]", " ", m.group()), code,
                  flags=re.MULTILINE | re.DOTALL)
    found, stack, head, line = [], [], "", 1
    for char in code:
        if char == "{":
            inside_function = any(kind != "other" for kind, _ in stack)
            is_function = (not inside_function and "(" in head and not CONTAINERS.match(head) and
                           not re.search(r"=\s*$", head))
            kind = "kernel" if "__global__" in head else "function"
            stack.append((kind if is_function else "other", line))
            head = ""
        elif char == "}":
            if stack:
                kind, begin = stack.pop()
                if kind != "other":
                    found.append((begin, line - begin + 1, kind))
            head = ""
        elif char == ";":
            head = ""
        else:
            head += char
        if char == "\n":
            line += 1
    return found


def find_cycle(graph):
    """A list of nodes a, b, ..., a that include each other in a circle, or None."""
    state, path = {}, []

    def visit(node):
        state[node] = "open"
        path.append(node)
        for other in sorted(graph.get(node, ())):
            if state.get(other) == "open":
                return path[path.index(other):] + [other]
            if other not in state:
                cycle = visit(other)
                if cycle:
                    return cycle
        state[node] = "done"
        path.pop()
        return None

    for node in sorted(graph):
        if node not in state:
            cycle = visit(node)
            if cycle:
                return cycle
    return None


class Checker:
    def __init__(self, root):
        self.root = root
        self.modules, self.errors = read_table(root)
        self.folder_graph = {}
        self.module_graph = {}
        self.includers = {}
        self.files = 0
        self.guards = 0

    def is_test(self, path):
        """Tests, benches, fuzzers, and headers that only those include."""
        return self.all_users_match(path,
                                    r"_(test|bench|fuzz)\.(cc|cu)$|^src/testing/|^tests/|^fuzz/")

    def is_vector_code(self, path):
        """Files of one instruction set, and headers that only those include."""
        return self.all_users_match(path, r"_(avx2|avx512)\.cc$")

    def is_cuda(self, path):
        """CUDA code, and headers that only it includes."""
        return path.endswith(".cuh") or self.all_users_match(path, r"\.cu$")

    def all_users_match(self, path, pattern):
        """True when the path matches, or is a header that ends up only in files that match."""
        seen, todo, matched = {path}, [path], False
        while todo:
            user = todo.pop()
            if re.search(pattern, user):
                matched = True
                continue
            next_users = self.includers.get(user, set())
            if not user.endswith((".h", ".cuh")) or not next_users:
                return False
            todo += next_users - seen
            seen |= next_users
        return matched

    def report(self, path, line, message):
        self.errors.append(f"{path}:{line}: {message}")

    def run(self):
        self.check_folders()
        self.check_cmake()
        files = {path.relative_to(self.root).as_posix(): path
                 for top in ("src", "tests", "fuzz")
                 for path in sorted((self.root / top).rglob("*"))
                 if path.suffix in SUFFIXES and path.is_file()}
        for path, file in files.items():
            for target in re.findall(r'^#\s*include\s+"([^"]+)"', file.read_text(encoding="utf-8"),
                                     re.MULTILINE):
                self.includers.setdefault(f"src/{target}", set()).add(path)
        for path, file in files.items():
            self.check_file(path, file)
        for what, graph in (("modules", self.module_graph), ("folders", self.folder_graph)):
            cycle = find_cycle(graph)
            if cycle:
                self.errors.append(f"{what} include each other in a circle: {' -> '.join(cycle)}")
        return self.errors

    def check_folders(self):
        folders = {p.name for p in (self.root / "src").iterdir() if p.is_dir()}
        for name in sorted(folders - set(self.modules)):
            self.errors.append(f"src/{name}: has no row in the table of docs/architecture.md")
        for name in sorted(set(self.modules) - folders):
            self.errors.append(f"docs/architecture.md: the module '{name}' has no folder in src/")

    def check_cmake(self):
        """What CMake links must be what the table allows."""
        path = self.root / "src/CMakeLists.txt"
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8")) if path.exists() else ""
        for name, rest in re.findall(r"triax_module\(\s*(\w+)([^)]*)\)", text):
            deps = re.search(r"\bDEPS\s+([a-z_\s]+)", rest)
            allowed = self.modules[name].includes if name in self.modules else []
            for dep in deps.group(1).split() if deps else []:
                if dep not in allowed:
                    self.errors.append(f"src/CMakeLists.txt: '{name}' links '{dep}', which its row "
                                       "in docs/architecture.md does not name")

    def check_file(self, path, file):
        self.files += 1
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        if len(lines) > FILE_LINES_MAX:
            self.report(path, len(lines), f"{len(lines)} lines, at most {FILE_LINES_MAX}")
        if file.suffix in HEADERS and "#pragma once" not in lines:
            self.report(path, 1, "no '#pragma once'")
        lines_max = TEST_LINES_MAX if self.is_test(path) else FUNCTION_LINES_MAX
        for begin, length, kind in functions(text):
            limit = max(lines_max, KERNEL_LINES_MAX) if kind == "kernel" else lines_max
            if length > limit:
                self.report(path, begin, f"a {kind} of {length} lines, at most {limit}")
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("#"):
                self.check_directive(path, number, line.strip(), file.suffix)

    def check_directive(self, path, number, line, suffix):
        quoted = re.match(r'#\s*include\s+"([^"]+)"', line)
        angled = re.match(r"#\s*include\s+<([^>]+)>", line)
        if quoted:
            self.check_own_include(path, number, quoted.group(1))
        elif angled:
            self.check_library(path, number, angled.group(1))
        elif re.match(r"#\s*(if|ifdef|ifndef|elif)\b", line):
            if line in CONDITIONALS:
                self.guards += 1
            elif CUDA_CONDITIONAL.match(line) and suffix in (".cu", ".cuh"):
                self.guards += 1
            elif not path.startswith(CONDITIONAL_FOLDERS):
                self.report(path, number, f"conditional compilation: {line}")
        elif re.match(r"#\s*define\b", line) and suffix in HEADERS:
            self.report(path, number, f"a macro in a header: {line}")

    def check_own_include(self, path, number, target):
        top = path.split("/")[0]
        if not (self.root / "src" / target).is_file():
            if top == "src" or not (self.root / top / target).is_file():
                self.report(path, number, f'"{target}" is not a path from src/')
            return
        if top != "src":
            return  # tests/ and fuzz/ may include every module
        module, other = path.split("/")[1], target.split("/")[0]
        self.folder_graph.setdefault(str(Path(path).parent), set())
        if other == "testing":
            if not self.is_test(path):
                self.report(path, number, "only tests, benches and fuzzers may include 'testing'")
            return
        folder = (Path("src") / target).parent
        if folder != Path(path).parent and not self.is_test(path):
            self.folder_graph[str(Path(path).parent)].add(str(folder))
        if other == module:
            return
        self.module_graph.setdefault(module, set()).add(other)
        if module in self.modules and other not in self.modules[module].includes:
            self.report(path, number, f"'{module}' may not include '{other}' (\"{target}\")")

    def check_library(self, path, number, header):
        if TEST_LIBRARIES.match(header):
            if not self.is_test(path):
                self.report(path, number, f"<{header}> outside tests and benches")
        elif INTRINSICS.match(header):
            if not self.is_vector_code(path):
                self.report(path, number, f"<{header}> outside *_avx2.cc, *_avx512.cc and headers "
                            "of theirs alone")
        elif CUDA_HEADERS.match(header):
            if not self.is_cuda(path):
                self.report(path, number, f"<{header}> outside *.cu and headers of theirs alone")
        elif path.startswith("src/"):
            module = path.split("/")[1]
            for pattern, name in LIBRARIES.items():
                if (re.match(pattern, header) and module in self.modules and
                        name not in self.modules[module].libraries and not self.is_test(path)):
                    self.report(path, number, f"'{module}' may not use {name} (<{header}>)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    checker = Checker(parser.parse_args().root)
    errors = checker.run()
    for error in errors:
        print(error)
    print(f"check_layers: {checker.files} files, {len(checker.modules)} modules, "
          f"{checker.guards} platform guards, {len(errors)} violations")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
