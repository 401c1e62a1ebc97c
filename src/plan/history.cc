// Reads bench/history: one line of JSON a measurement.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "checkpoint/shapes.h"
#include "plan/calibration.h"
#include "plan/json_reader.h"
#include "plan/weights.h"

namespace triax::plan {
namespace {

constexpr double kDim = 128;  // of KDA's heads in all measured kernels
constexpr double kLatent = 576, kLora = 512, kKey = 192, kValue = 128;  // of MLA there

/// What the experts of the two measured shapes are.
struct ExpertShape {
  double experts, top_k, io, width, hidden;
};
constexpr ExpertShape kK3 = {896, 16, 3584, 3072, 7168};
constexpr ExpertShape kLinear48b = {256, 8, 2304, 1024, 2304};

std::optional<Format> format_named(std::string_view name) {
  for (const Format format :
       {Format::kF32, Format::kBf16, Format::kFp8, Format::kInt8, Format::kMxfp4}) {
    if (format_name(format) == name) {
      return format;
    }
  }
  return std::nullopt;
}

std::string text_of(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

class Reader {
 public:
  Reader(std::string_view source, History* history) : source_(source), history_(history) {}

  Status line(std::string_view text, int64_t number) {
    where_ = fmt::format("{}: line {}", source_, number);
    const Result<Json> object = parse_object(text, where_);
    if (!object.ok()) {
      return object.status();
    }
    ++history_->lines;
    bench_ = text_of(*object, "bench");
    const std::optional<Status> status =
        bench_.empty() ? read_case(*object, text_of(*object, "case")) : read(*object);
    if (status) {
      return *status;
    }
    ++history_->unused;
    return {};
  }

 private:
  /// No value: no operation uses such a line.
  std::optional<Status> read(const Json& object) {
    if (bench_ == "model") {
      return model(object);
    }
    if (bench_ == "kda_prefill") {
      return kda_prefill(object);
    }
    const std::string shape = text_of(object, "shape");
    if (bench_ == "linear_decode" || bench_ == "linear_rows" || bench_ == "linear_lt" ||
        bench_ == "linear_mxfp4") {
      return linear(object, bench_ == "linear_mxfp4" ? "mxfp4 " + shape : shape);
    }
    if (bench_ == "kda_decode") {
      return kda_decode(object, shape);
    }
    if (bench_ == "mla_decode" || bench_ == "mla_prefill") {
      return mla(object, shape);
    }
    if (bench_ == "moe_decode" || bench_ == "moe_prefill") {
      return experts(object, shape);
    }
    if (bench_ == "router_logits_sm90" || bench_ == "router_select") {
      return router(object, shape);
    }
    if (bench_ == "attn_res_mix" && shape.ends_with("Q1 f32")) {
      return attn_res(object, shape);
    }
    return std::nullopt;
  }

  /// A line of `triax bench ops|model --json`; `what` is its case.
  std::optional<Status> read_case(const Json& object, const std::string& what) {
    bench_ = "case";
    if (what.starts_with("decode") || what.starts_with("prefill")) {
      return model_case(object, what);
    }
    const auto config = checkpoint::named_shape(text_of(object, "shape"), {});
    if (!config.ok()) {
      return std::nullopt;
    }
    const Result<double> seconds = number(object, "seconds_median", 1e-9);
    if (!seconds.ok()) {
      return seconds.status();
    }
    return operation_case(*config, what, Json{{"us", 1e6 * *seconds}});
  }

  /// Tokens a second, of all sequences, into the time of a step or a prompt.
  Status model_case(const Json& object, const std::string& what) {
    const Result<double> rate = number(object, "tokens_per_second", 1e-6);
    if (!rate.ok()) {
      return rate.status();
    }
    double batch = 1, tokens = 0;
    if (std::sscanf(what.c_str(), "prefill %lf", &tokens) == 1) {
      batch = tokens;
    } else if (std::sscanf(what.c_str(), "decode %lf after", &batch) != 1) {
      batch = 1;
    }
    Json line = object;
    line["us"] = 1e6 * batch / *rate;
    return model(line);
  }

  std::optional<Status> operation_case(const checkpoint::ModelConfig& config,
                                       const std::string& what, const Json& line) {
    const char* c = what.c_str();
    const auto d = static_cast<double>(config.hidden);
    double a = 0, b = 0, t = 0;
    char format[9] = "";
    if (std::sscanf(c, "linear %8s [%lf x %lf] T=%lf", format, &a, &b, &t) == 4) {
      return linear(line, fmt::format("{} {}x{} T={}", format, a, b, t));
    }
    if (std::sscanf(c, "rms_norm T=%lf", &t) == 1) {
      return add(line, Kernel::kElementwise, Format::kBf16, "case " + what, 4 * t * d, 8 * t * d);
    }
    if (std::sscanf(c, "attn_res of %lf sources T=%lf", &a, &t) == 2) {
      return add(line, Kernel::kAttnRes, Format::kBf16, "case " + what, 4 * t * a * d,
                 4 * t * (a + 1) * d);
    }
    if (std::sscanf(c, "latent_moe %lf of %lf T=%lf", &a, &b, &t) == 3) {
      // The routed experts with router and shared expert, which are a small part of it.
      const auto io = static_cast<double>(config.expert_io());
      const auto width = static_cast<double>(config.moe.width);
      const double other = static_cast<double>(config.moe.shared_width()) * 3 * d +
                           static_cast<double>(config.moe.experts) * d;
      return add(line, Kernel::kExperts, Format::kMxfp4, "case " + what,
                 t * (a * 6 * io * width + 2 * other),
                 visited_experts(config, t) * 3 * io * width * format_bytes(Format::kMxfp4) +
                     other * format_bytes(Format::kInt8));
    }
    if (what.starts_with("kda") && std::sscanf(tail_from(what, " H="), " H=%lf", &a) == 1 &&
        std::sscanf(tail_from(what, " T="), " T=%lf", &t) == 1) {
      const auto dim = static_cast<double>(config.kda.head_dim);
      return t == 1 ? add(line, Kernel::kKdaDecode, Format::kBf16, "case " + what,
                          a * kda_decode_flops(dim), a * kda_decode_bytes(dim, 4))
                    : add(line, Kernel::kKdaPrefill, Format::kBf16, "case " + what,
                          t * a * kda_chunk_flops(16, dim) / 16, t * a * kda_fused_bytes(dim));
    }
    if (what.starts_with("mla") && std::sscanf(tail_from(what, " H="), " H=%lf", &a) == 1 &&
        std::sscanf(tail_from(what, " T="), " T=%lf after %lf", &t, &b) == 2) {
      bench_ = t == 1 ? "mla_decode" : "mla_prefill";
      return mla(line, t == 1 ? fmt::format("B=1 L={} H={} T=1", b + 1, a)
                              : fmt::format("N=1 start={} T={} H={}", b, t, a));
    }
    return std::nullopt;
  }

  /// What follows the first `mark`, with it; empty without.
  static const char* tail_from(const std::string& text, const char* mark) {
    const size_t at = text.find(mark);
    return at == text.npos ? "" : text.c_str() + at;
  }

  Result<double> number(const Json& object, const char* name, double least) const {
    const auto it = object.find(name);
    const double x = it != object.end() && it->is_number() ? it->get<double>() : NAN;
    if (!(x >= least && x <= 1e18)) {
      return Status::invalid_argument(
          fmt::format("plan: {}: {} of '{}' is {}, expected a number of at least {:g}", where_,
                      name, bench_, it == object.end() ? "missing" : "wrong", least));
    }
    return x;
  }

  Status bad_shape(const std::string& shape) const {
    return Status::invalid_argument(fmt::format("plan: {}: shape '{}' of '{}' cannot be read",
                                                where_, shape.substr(0, 60), bench_));
  }

  /// The line's kernel; a later line of the same name replaces an earlier one.
  Status add(const Json& object, Kernel kernel, Format weights, std::string name, double flops,
             double bytes) {
    const Result<double> us = number(object, "us", 1e-3);
    if (!us.ok()) {
      return us.status();
    }
    if (!(flops > 0 && bytes > 0 && flops < 1e30 && bytes < 1e30)) {
      return bad_shape(name);
    }
    Measured line{kernel, weights, std::move(name), flops, bytes, 1e-6 * *us};
    for (Measured& known : history_->kernels) {
      if (known.name == line.name) {
        known = std::move(line);
        return {};
      }
    }
    history_->kernels.push_back(std::move(line));
    return {};
  }

  Status linear(const Json& object, const std::string& shape) {
    char format[9] = "";
    double rows = 0, cols = 0, tokens = 0;
    if (std::sscanf(shape.c_str(), "%8s %lfx%lf T=%lf", format, &rows, &cols, &tokens) != 4) {
      return bad_shape(shape);
    }
    const std::optional<Format> weights = format_named(format);
    if (!weights) {
      return bad_shape(shape);
    }
    return add(object, Kernel::kLinear, *weights,
               fmt::format("linear {} {}x{} T={}", format, rows, cols, tokens),
               2 * rows * cols * tokens,
               rows * cols * format_bytes(*weights) + 2 * tokens * (rows + cols));
  }

  Status kda_prefill(const Json& object) {
    double tokens = 0, heads = 0, sequences = 0;
    for (const auto& [name, value] :
         {std::pair{"tokens", &tokens}, {"heads", &heads}, {"sequences", &sequences}}) {
      const Result<double> read = number(object, name, 1);
      if (!read.ok()) {
        return read.status();
      }
      *value = *read;
    }
    if (text_of(object, "gates") != "normal") {
      ++history_->unused;
      return {};
    }
    return add(object, Kernel::kKdaPrefill, Format::kBf16,
               fmt::format("kda_prefill T={} N={} H={}", tokens, sequences, heads),
               tokens * heads * kda_chunk_flops(16, kDim) / 16,
               tokens * heads * kda_fused_bytes(kDim));
  }

  std::optional<Status> kda_decode(const Json& object, const std::string& shape) {
    double heads = 0, batch = 0;
    if (std::sscanf(shape.c_str(), "H%lf B%lf", &heads, &batch) != 2) {
      return bad_shape(shape);
    }
    if (shape.find("conv norm") == shape.npos || shape.find("in L2") != shape.npos) {
      return std::nullopt;  // the model calls the fused one
    }
    return add(object, Kernel::kKdaDecode, Format::kBf16,
               fmt::format("kda_decode H={} B={}", heads, batch),
               heads * batch * kda_decode_flops(kDim), heads * batch * kda_decode_bytes(kDim, 4));
  }

  Status mla(const Json& object, const std::string& shape) {
    double a = 0, b = 0, c = 0, d = 0;
    if (bench_ == "mla_decode") {
      if (std::sscanf(shape.c_str(), "B=%lf L=%lf H=%lf T=%lf", &a, &b, &c, &d) != 4) {
        return bad_shape(shape);
      }
      return add(object, Kernel::kMlaDecode, Format::kBf16,
                 fmt::format("mla_decode B={} L={} H={} T={}", a, b, c, d),
                 a * b * c * d * 2 * (kLatent + kLora), a * b * kLatent * 2);
    }
    if (std::sscanf(shape.c_str(), "N=%lf start=%lf T=%lf H=%lf", &a, &b, &c, &d) != 4) {
      return bad_shape(shape);
    }
    return add(object, Kernel::kMlaPrefill, Format::kBf16,
               fmt::format("mla_prefill N={} start={} T={} H={}", a, b, c, d),
               a * (c * b + c * (c + 1) / 2) * d * 2 * (kKey + kValue),
               a * (2 * c + b) * d * 2 * (kKey + kValue));
  }

  Status experts(const Json& object, const std::string& shape) {
    const ExpertShape& e = shape.starts_with("k3") ? kK3 : kLinear48b;
    double tokens = 0, visited = e.experts;
    const size_t at = shape.find(" T=");
    const int found =
        at == shape.npos ? 0
                         : std::sscanf(shape.c_str() + at, " T=%lf visited=%lf", &tokens, &visited);
    if (found < 1 || !(visited <= e.experts)) {
      return bad_shape(shape);
    }
    return add(object, Kernel::kExperts, Format::kMxfp4,
               fmt::format("experts {} T={}", shape.substr(0, at), tokens),
               tokens * e.top_k * 6 * e.io * e.width,
               visited * 3 * e.io * e.width * format_bytes(Format::kMxfp4) +
                   2 * tokens * e.top_k * (2 * e.io + 2 * e.width));
  }

  /// Logits and choice are two kernels of one operation.
  Status router(const Json& object, const std::string& shape) {
    double tokens = 0;
    const size_t at = shape.find(" T=");
    if (at == shape.npos || std::sscanf(shape.c_str() + at, " T=%lf", &tokens) != 1) {
      return bad_shape(shape);
    }
    const Result<double> us = number(object, "us", 1e-3);
    if (!us.ok()) {
      return us.status();
    }
    auto& [logits, choice] = routers_[shape];
    (bench_ == "router_select" ? choice : logits) = *us;
    if (logits == 0 || choice == 0) {
      return {};
    }
    const ExpertShape& e = shape.starts_with("k3") ? kK3 : kLinear48b;
    return add(Json{{"us", logits + choice}}, Kernel::kRouter, Format::kBf16, "router " + shape,
               2 * tokens * e.experts * e.hidden,
               e.experts * e.hidden * 2 + tokens * (e.hidden * 2 + e.experts * 4));
  }

  Status attn_res(const Json& object, const std::string& shape) {
    double tokens = 0, width = 0, sources = 0;
    if (std::sscanf(shape.c_str(), "T%lf D%lf B%lf", &tokens, &width, &sources) != 3) {
      return bad_shape(shape);
    }
    return add(object, Kernel::kAttnRes, Format::kBf16, "attn_res " + shape,
               4 * tokens * sources * width, 4 * tokens * (sources + 1) * width);
  }

  /// "kimi-linear-48b int8 mxfp4, decode 32 after 4096", or with the parts in fields of their own.
  Status model(const Json& object) {
    std::string shape = text_of(object, "shape"), what = text_of(object, "case");
    MeasuredModel line;
    line.experts = text_of(object, "experts");
    line.dense = text_of(object, "dense");
    if (what.empty()) {
      char name[65] = "", dense[9] = "", experts[9] = "", rest[65] = "";
      if (std::sscanf(shape.c_str(), "%64s %8s %8[^,], %64[^\n]", name, dense, experts, rest) !=
          4) {
        return bad_shape(shape);
      }
      shape = name;
      line.dense = dense;
      line.experts = experts;
      what = rest;
    }
    line.shape = shape;
    for (const auto& [name, value] : {std::pair{"layers", &line.layers}, {"vocab", &line.vocab}}) {
      if (object.contains(name)) {
        const Result<double> read = number(object, name, 0);
        if (!read.ok()) {
          return read.status();
        }
        *value = static_cast<int64_t>(*read);
      }
    }
    double batch = 1, tokens = 0;
    line.prefill = std::sscanf(what.c_str(), "prefill %lf", &tokens) == 1;
    if (!line.prefill && std::sscanf(what.c_str(), "decode after %lf", &tokens) != 1 &&
        std::sscanf(what.c_str(), "decode %lf after %lf", &batch, &tokens) != 2) {
      return bad_shape(what);
    }
    const Result<double> us = number(object, "us", 1e-3);
    if (!us.ok() || !(batch >= 1 && batch <= 1e6 && tokens >= 0 && tokens <= 1e9) ||
        !format_named(line.experts) || !format_named(line.dense)) {
      return us.ok() ? bad_shape(shape + ", " + what) : us.status();
    }
    line.batch = static_cast<int64_t>(batch);
    line.tokens = static_cast<int64_t>(tokens);
    line.seconds = 1e-6 * *us;
    history_->models.push_back(std::move(line));
    return {};
  }

  std::string source_, where_, bench_;
  History* history_;
  std::map<std::string, std::pair<double, double>> routers_;
};

}  // namespace

Result<History> parse_history(std::string_view text, std::string_view source) {
  History history;
  Reader reader(source, &history);
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.find_first_not_of(" \t\r") != line.npos) {
      if (Status status = reader.line(line, number); !status.ok()) {
        return status;
      }
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return history;
}

void append(History more, History* history) {
  for (Measured& line : more.kernels) {
    bool known = false;
    for (Measured& old : history->kernels) {
      if (old.name == line.name) {
        old = line;
        known = true;
      }
    }
    if (!known) {
      history->kernels.push_back(std::move(line));
    }
  }
  for (MeasuredModel& line : more.models) {
    history->models.push_back(std::move(line));
  }
  history->lines += more.lines;
  history->unused += more.unused;
}

}  // namespace triax::plan
