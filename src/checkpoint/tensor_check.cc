#include "checkpoint/tensor_check.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>

namespace triax::checkpoint {
namespace {

constexpr size_t kLinesMax = 20;
constexpr std::array<std::string_view, 5> kKindNames = {
    "missing", "surplus", "of another shape", "of another type", "where index and files disagree"};

bool is_float(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kF16 || type == ElementType::kBf16;
}

class TensorChecker {
 public:
  TensorChecker(const FindTensor& find, const UseTensor& use, ProblemList& problems)
      : find_(find), use_(use), problems_(problems) {}

  void check_spec(const TensorSpec& spec) {
    if (spec.role == Role::kVector) {
      check_vector(spec);
    } else {
      check_matrix(spec);
    }
  }

 private:
  void check_vector(const TensorSpec& spec) {
    const FoundTensor found = find_(spec.name);
    if (found.entry == nullptr) {
      missing(spec.name, spec.shape, "");
      return;
    }
    use_(spec.name, spec);
    expect_float(spec.name, found);
    const auto equals = [&](const std::vector<int64_t>& shape) {
      return std::ranges::equal(shape, found.entry->shape());
    };
    if (!equals(spec.shape) && std::ranges::none_of(spec.accepted, equals)) {
      wrong_shape(spec.name, found, spec.shape);
    }
  }

  void check_matrix(const TensorSpec& spec) {
    const int64_t rows = spec.shape[0];
    const int64_t cols = spec.shape[1];
    const bool blocks = spec.role != Role::kPlain && cols % kScaleBlock == 0;
    const std::string packed = spec.name + ".weight_packed";
    const std::string plain = spec.name + ".weight";
    if (const FoundTensor found = find_(packed); found.entry != nullptr && blocks) {
      use_(packed, spec);
      expect(packed, found, ElementType::kU8, {rows, cols / 2});
      check_scale(spec, ElementType::kU8);
      return;
    }
    const FoundTensor found = find_(plain);
    if (found.entry == nullptr) {
      missing(plain, spec.shape, blocks ? " (or .weight_packed with .weight_scale)" : "");
      return;
    }
    use_(plain, spec);
    if (found.entry->type == ElementType::kI8 && blocks) {
      check_scale(spec, ElementType::kBf16);
    } else {
      expect_float(plain, found);
    }
    if (!std::ranges::equal(spec.shape, found.entry->shape())) {
      wrong_shape(plain, found, spec.shape);
    }
  }

  void check_scale(const TensorSpec& spec, ElementType type) {
    const std::string name = spec.name + ".weight_scale";
    const std::vector<int64_t> shape = {spec.shape[0], spec.shape[1] / kScaleBlock};
    const FoundTensor found = find_(name);
    if (found.entry == nullptr) {
      missing(name, shape, "");
      return;
    }
    use_(name, spec);
    expect(name, found, type, shape);
  }

  void expect(const std::string& name, const FoundTensor& found, ElementType type,
              const std::vector<int64_t>& shape) {
    if (found.entry->type != type) {
      wrong_type(name, found, element_name(type));
    }
    if (!std::ranges::equal(shape, found.entry->shape())) {
      wrong_shape(name, found, shape);
    }
  }

  void expect_float(const std::string& name, const FoundTensor& found) {
    if (!is_float(found.entry->type)) {
      wrong_type(name, found, "BF16, F16 or F32");
    }
  }

  void missing(const std::string& name, const std::vector<int64_t>& shape, std::string_view more) {
    problems_.add(Problem::kMissing,
                  fmt::format("tensor '{}' {}{}", name, shape_string(shape), more));
  }

  void wrong_type(const std::string& name, const FoundTensor& found, std::string_view expected) {
    problems_.add(Problem::kType,
                  fmt::format("{}: tensor '{}' has type {}, expected {}", found.file, name,
                              element_name(found.entry->type), expected));
  }

  void wrong_shape(const std::string& name, const FoundTensor& found,
                   const std::vector<int64_t>& expected) {
    problems_.add(Problem::kShape,
                  fmt::format("{}: tensor '{}' has shape {}, expected {}", found.file, name,
                              shape_string(found.entry->shape()), shape_string(expected)));
  }

  const FindTensor& find_;
  const UseTensor& use_;
  ProblemList& problems_;
};

}  // namespace

void ProblemList::add(Problem kind, std::string line) {
  Kind& list = kinds_[static_cast<size_t>(kind)];
  if (++list.count <= static_cast<int64_t>(kLinesMax)) {
    list.lines.push_back(std::move(line));
  }
}

bool ProblemList::empty() const {
  return std::ranges::all_of(kinds_, [](const Kind& kind) { return kind.count == 0; });
}

Status ProblemList::status(const std::string& directory) const {
  if (empty()) {
    return {};
  }
  std::string text = fmt::format("checkpoint: {}: the tensors do not fit config.json", directory);
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const Kind& kind = kinds_[i];
    if (kind.count == 0) {
      continue;
    }
    text += fmt::format("\n  {} {}:\n    {}", kind.count, kKindNames[i],
                        fmt::join(kind.lines, "\n    "));
    if (kind.count > static_cast<int64_t>(kind.lines.size())) {
      text +=
          fmt::format("\n    and {} more", kind.count - static_cast<int64_t>(kind.lines.size()));
    }
  }
  text += "\n  the files may belong to another config, or the download is not complete";
  return Status::invalid_argument(std::move(text));
}

void check_tensors(const std::vector<TensorSpec>& specs, const FindTensor& find,
                   const UseTensor& use, ProblemList& problems) {
  TensorChecker checker(find, use, problems);
  for (const TensorSpec& spec : specs) {
    checker.check_spec(spec);
  }
}

}  // namespace triax::checkpoint
