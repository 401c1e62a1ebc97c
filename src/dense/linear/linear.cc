// Checks the products, prepares their activations, splits the work into tasks of about equal cost.
#include "dense/linear/linear.h"

#include <fmt/core.h>

#include <algorithm>

#include "dense/linear/linear_internal.h"
#include "dense/linear/linear_kernels.h"
#include "dense/linear/linear_reference.h"
#include "tensor/shape_check.h"

namespace triax::dense {
namespace {

using linear_internal::kColumnPad;
using linear_internal::Kernels;
using linear_internal::kPanelRows;
using linear_internal::kRecordBytes;
using linear_internal::QuantizedRow;
using linear_internal::Range;
using linear_internal::Tiling;
using linear_internal::Work;

// Below this many activations, starting the threads costs more than preparing them.
constexpr int64_t kSerialPrepare = int64_t{1} << 14;
// Tasks per thread: enough to even out, few enough that each reads a long run of rows.
constexpr int64_t kTasksPerThread = 8;
constexpr int64_t kTaskBytesMin = int64_t{1} << 15;
// A product with fewer tokens in a part would unpack its weights too often.
constexpr int64_t kTokensPerPartMin = 96;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

Status check_product(std::string_view name, const Product& product) {
  ShapeCheck shapes(name);
  shapes.f32("in", product.in, {"T", "C"})
      .matrix("weight", product.weight, "R", "C")
      .f32("out", product.out, {"T", "R"});
  return shapes.status();
}

bool blocked(MatrixFormat format) {
  return format == MatrixFormat::kMxfp4 || format == MatrixFormat::kInt8;
}

// How the activations of a product lie in memory once prepared.
enum class Layout { kAsIs, kDecodeOrder, kTiles, kInt8, kInt8Tiles };

bool in_tiles(Layout layout) { return layout == Layout::kTiles || layout == Layout::kInt8Tiles; }

// One input that is prepared; several products may read it.
struct Input {
  Layout layout = Layout::kAsIs;
  MatrixFormat format = MatrixFormat::kF32;  // matters for int8
  const float* in = nullptr;
  int64_t tokens = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  float* x = nullptr;
  uint8_t* records = nullptr;
  QuantizedRow q;
  int64_t first_unit = 0;  // of all inputs' rows or tiles, one after the other
  int64_t units = 0;

  bool same(const Input& other) const {
    return layout == other.layout && in == other.in && tokens == other.tokens &&
           cols == other.cols && stride == other.stride &&
           (format == other.format || layout == Layout::kTiles || layout == Layout::kAsIs);
  }
};

// A product's tasks: `row_parts` times `token_parts` of them.
struct Split {
  int64_t first_task = 0;
  int64_t rows = 0;  // of one part
  int64_t token_parts = 0;
  Tiling tiling;
};

Tiling make_tiling(int64_t tokens, int64_t rows_max) {
  Tiling tiling;
  tiling.count = divide_up(tokens, rows_max);
  if (tiling.count > 0) {
    tiling.small = tokens / tiling.count;
    tiling.large = tokens % tiling.count;
  }
  return tiling;
}

int64_t tile_begin(const Tiling& tiling, int64_t tile) {
  return tile * tiling.small + std::min(tile, tiling.large);
}

// All of one call. Arrays live in the workspace.
class Plan {
 public:
  Plan(const Device& device, const Kernels& kernels, std::span<const Product> products,
       Activations activations)
      : device_(device),
        kernels_(kernels),
        scope_(*device.workspace),
        count_(static_cast<int64_t>(products.size())),
        works_(scope_.take<Work>(count_)),
        splits_(scope_.take<Split>(count_)),
        inputs_(scope_.take<Input>(count_)) {
    for (int64_t i = 0; i < count_; ++i) {
      add(products[static_cast<size_t>(i)], activations, i);
    }
  }

  void run() {
    prepare();
    split();
    const int64_t scratch_bytes = round_up(kernels_.scratch_bytes(cols_max_), 64);
    auto* scratch = scope_.take<std::byte>(scratch_bytes * device_.threads->threads());
    device_.threads->run(tasks_, [&](int64_t task, int worker) {
      run_task(task, scratch + worker * scratch_bytes);
    });
  }

 private:
  void add(const Product& product, Activations activations, int64_t index);
  const Input& input_of(const Work& work, const Product& product, Layout layout);
  void allocate(Input& input);
  void prepare();
  void prepare_unit(int64_t unit);
  void prepare_tile(const Input& input, int64_t tile);
  void split();
  void run_task(int64_t task, std::byte* scratch);

  static bool decodes(const Work& work) { return work.tokens <= kDecodeRowsMax; }
  // In bytes read: a multiply-add of a row takes about as long as half a byte.
  static int64_t row_cost(const Work& work) {
    return work.row_bytes + work.scale_row_bytes + work.cols * work.tokens / 2;
  }

  const Device& device_;
  const Kernels& kernels_;
  Workspace::Scope scope_;
  int64_t count_;
  Work* works_;
  Split* splits_;
  Input* inputs_;
  int64_t input_count_ = 0;
  int64_t cols_max_ = 0;
  int64_t tasks_ = 0;
};

void Plan::add(const Product& product, Activations activations, int64_t index) {
  const MatrixView& weight = product.weight;
  Work& work = works_[index] = Work{};
  work.format = weight.format;
  work.rows = weight.rows;
  work.cols = weight.cols;
  work.data = static_cast<const uint8_t*>(weight.data);
  work.scales = static_cast<const uint8_t*>(weight.scales);
  work.row_bytes = weight.row_bytes();
  work.scale_row_bytes = weight.scale_row_bytes();
  work.tokens = product.in.size(0);
  if (work.rows == 0 || work.tokens == 0) {
    work.tokens = 0;
    return;
  }
  work.out = product.out.data<float>();
  work.out_stride = product.out.stride(0);
  if (work.cols == 0) {
    for (int64_t t = 0; t < work.tokens; ++t) {
      std::fill_n(work.out + t * work.out_stride, work.rows, 0.0f);
    }
    work.tokens = 0;
    return;
  }
  cols_max_ = std::max(cols_max_, work.cols);
  Layout layout = Layout::kAsIs;
  if (activations == Activations::kInt8 && blocked(work.format)) {
    const bool rows = decodes(work) || kernels_.quantize_tile == nullptr;
    layout = rows ? Layout::kInt8 : Layout::kInt8Tiles;
  } else if (!decodes(work)) {
    layout = kernels_.pack_tile != nullptr ? Layout::kTiles : Layout::kAsIs;
  } else if (work.format == MatrixFormat::kMxfp4 && kernels_.pack_decode != nullptr) {
    layout = Layout::kDecodeOrder;
  }
  const Input& input = input_of(work, product, layout);
  work.int8 = layout == Layout::kInt8 || layout == Layout::kInt8Tiles;
  work.x = layout == Layout::kAsIs ? input.in : input.x;
  work.x_stride = layout == Layout::kAsIs ? input.stride : round_up(work.cols, kColumnPad);
  work.records = input.records;
  work.q = input.q.values;
  work.q_scales = input.q.scales;
  work.q_sums = input.q.sums;
  work.q_stride = round_up(work.cols, kColumnPad);
  work.q_block_stride = work.q_stride / 8;
}

const Input& Plan::input_of(const Work& work, const Product& product, Layout layout) {
  Input input;
  input.layout = layout;
  input.format = work.format;
  input.in = product.in.data<float>();
  input.tokens = work.tokens;
  input.cols = work.cols;
  input.stride = product.in.stride(0);
  // Products that share an input stand close together.
  constexpr int64_t kLookBack = 16;
  for (int64_t i = input_count_ - 1; i >= std::max<int64_t>(0, input_count_ - kLookBack); --i) {
    if (inputs_[i].same(input)) {
      return inputs_[i];
    }
  }
  allocate(input);
  return inputs_[input_count_++] = input;
}

void Plan::allocate(Input& input) {
  const int64_t padded = round_up(input.cols, kColumnPad);
  input.units =
      in_tiles(input.layout) ? divide_up(input.tokens, kernels_.tile_rows_max) : input.tokens;
  switch (input.layout) {
    case Layout::kAsIs:
      input.units = 0;
      break;
    case Layout::kDecodeOrder:
      input.x = scope_.take<float>(input.tokens * padded);
      break;
    case Layout::kTiles:
      input.x = scope_.take<float>(input.tokens * input.cols);
      break;
    case Layout::kInt8Tiles:
      input.records = scope_.take<uint8_t>(input.tokens * input.cols / kScaleBlock * kRecordBytes);
      break;
    case Layout::kInt8:
      input.q.values = scope_.take<int8_t>(input.tokens * padded);
      input.q.scales = scope_.take<float>(input.tokens * padded / 8);
      input.q.sums = scope_.take<int32_t>(input.tokens * padded / 8);
      break;
  }
}

void Plan::prepare() {
  int64_t units = 0;
  int64_t elements = 0;
  for (int64_t i = 0; i < input_count_; ++i) {
    inputs_[i].first_unit = units;
    units += inputs_[i].units;
    elements += inputs_[i].units == 0 ? 0 : inputs_[i].tokens * inputs_[i].cols;
  }
  if (elements <= kSerialPrepare) {
    for (int64_t unit = 0; unit < units; ++unit) {
      prepare_unit(unit);
    }
    return;
  }
  const int64_t grain = divide_up(units, 4 * device_.threads->threads());
  device_.threads->run_ranges(units, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t unit = begin; unit < end; ++unit) {
      prepare_unit(unit);
    }
  });
}

void Plan::prepare_unit(int64_t unit) {
  const Input* next =
      std::upper_bound(inputs_, inputs_ + input_count_, unit,
                       [](int64_t value, const Input& input) { return value < input.first_unit; });
  const Input& input = *(next - 1);
  const int64_t index = unit - input.first_unit;
  const int64_t padded = round_up(input.cols, kColumnPad);
  const float* row = input.in + index * input.stride;
  if (input.layout == Layout::kInt8) {
    kernels_.quantize(row, input.cols, input.format,
                      {input.q.values + index * padded, input.q.scales + index * padded / 8,
                       input.q.sums + index * padded / 8});
  } else if (input.layout == Layout::kDecodeOrder) {
    kernels_.pack_decode(row, input.cols, input.x + index * padded);
  } else {
    prepare_tile(input, index);
  }
}

void Plan::prepare_tile(const Input& input, int64_t tile) {
  const Tiling tiling = make_tiling(input.tokens, kernels_.tile_rows_max);
  const int64_t begin = tile_begin(tiling, tile);
  const int64_t rows = tile_begin(tiling, tile + 1) - begin;
  const float* in = input.in + begin * input.stride;
  if (input.layout == Layout::kTiles) {
    kernels_.pack_tile(in, input.stride, rows, input.cols, input.x + begin * input.cols);
  } else {
    kernels_.quantize_tile(in, input.stride, rows, input.cols, input.format,
                           input.records + begin * input.cols / kScaleBlock * kRecordBytes);
  }
}

void Plan::split() {
  int64_t total = 0;
  for (int64_t i = 0; i < count_; ++i) {
    total += works_[i].tokens == 0 ? 0 : works_[i].rows * row_cost(works_[i]);
  }
  const int64_t goal =
      std::max(kTaskBytesMin, total / (kTasksPerThread * device_.threads->threads()));
  for (int64_t i = 0; i < count_; ++i) {
    const Work& work = works_[i];
    Split& split = splits_[i] = Split{};
    split.first_task = tasks_;
    if (work.tokens == 0) {
      continue;
    }
    const int64_t cost = std::max<int64_t>(1, row_cost(work));
    split.rows = round_up(std::max<int64_t>(1, goal / cost), kPanelRows);
    split.token_parts = 1;
    if (!decodes(work)) {
      split.tiling = make_tiling(work.tokens, kernels_.tile_rows_max);
      const int64_t wanted = divide_up(kPanelRows * cost, 2 * goal);
      split.token_parts = std::clamp<int64_t>(work.tokens / kTokensPerPartMin, 1, wanted);
    }
    tasks_ += divide_up(work.rows, split.rows) * split.token_parts;
  }
}

void Plan::run_task(int64_t task, std::byte* scratch) {
  const Split* next =
      std::upper_bound(splits_, splits_ + count_, task,
                       [](int64_t value, const Split& split) { return value < split.first_task; });
  const Split& split = *(next - 1);
  const Work& work = works_[next - 1 - splits_];
  const int64_t index = task - split.first_task;
  const int64_t row_begin = index / split.token_parts * split.rows;
  const int64_t row_end = std::min(work.rows, row_begin + split.rows);
  if (decodes(work)) {
    kernels_.decode(work, row_begin, row_end, scratch);
    return;
  }
  const int64_t part = index % split.token_parts;
  const Tiling& tiling = split.tiling;
  const int64_t first = tiling.count * part / split.token_parts;
  const int64_t last = tiling.count * (part + 1) / split.token_parts;
  kernels_.prefill(work, {row_begin, row_end, tile_begin(tiling, first), tile_begin(tiling, last)},
                   scratch);
}

Kernels kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return linear_internal::avx512_kernels();
    case Isa::kAvx2:
      return linear_internal::avx2_kernels();
    case Isa::kPortable:
      break;
  }
  return linear_internal::portable_kernels();
}

}  // namespace

Status linear_internal::check_products(std::span<const Product> products) {
  for (size_t i = 0; i < products.size(); ++i) {
    if (!check_product("linear", products[i]).ok()) {
      return check_product(fmt::format("linear: product {} of {}", i, products.size()),
                           products[i]);
    }
  }
  return {};
}

Status linear(const Device& device, std::span<const Product> products, Activations activations) {
  Status status = linear_internal::check_products(products);
  if (!status.ok()) {
    return status;
  }
  if (device.backend == Backend::kReference) {
    for (const Product& product : products) {
      linear_internal::linear_reference(*device.threads, product, activations);
    }
    return {};
  }
  if (device.backend == Backend::kCuda) {
    return linear_internal::linear_cuda(device, products, activations);
  }
  const Kernels kernels = kernels_of(device.isa);
  Plan(device, kernels, products, activations).run();
  return {};
}

}  // namespace triax::dense
