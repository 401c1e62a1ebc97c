// Time and FLOPs of the grouped products of routed experts, K3's and Kimi Linear's shapes.
#include "width/latent_moe/moe_cases_sm90.cuh"
#include "width/latent_moe/moe_prefill_sm90.h"

namespace triax::width {
namespace {

using namespace sm90_cases;
using testing::GpuTime;
using testing::random_floats;

constexpr double kPeakTflops = 769.0;

struct Shape {
  const char* name;
  int64_t experts, width, hidden, routes;
};

// Normal values; long ones repeat, which products do not notice.
std::vector<float> inputs(int64_t count) {
  const std::vector<float> some = random_floats(1'000'003, 2);
  std::vector<float> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = some[i % some.size()];
  }
  return all;
}

// A layer ready to run.
struct Layer {
  const Experts& experts;
  int64_t tokens, routes;
  std::vector<float> in_host, p_host;
  std::vector<int32_t> ids;
  GpuArray<float> in, p, out;
  HostGroups groups;
  GpuArray<uint8_t> scratch;

  Layer(const Experts& e, int64_t tokens_, int64_t routes_)
      : experts(e),
        tokens(tokens_),
        routes(routes_),
        in_host(inputs(tokens * e.gate.cols)),
        p_host(random_floats(static_cast<size_t>(tokens * routes), 4, 0.1f, 0.3f)),
        ids(random_routes(tokens, routes, e.gate.count, 3)),
        in(in_host),
        p(p_host),
        out(in_host.size()),
        groups(ids, tokens, routes, e.gate.count),
        scratch(static_cast<size_t>(
            triax_cuda_moe_prefill_sm90_scratch_bytes(tokens, routes, e.gate.cols, e.gate.rows))) {}

  void launch(cudaStream_t stream) const {
    const MoePrefillSm90 args{.weights = experts.view(),
                              .activation = {.kind = Activation::Kind::kSitu},
                              .in = in.data(),
                              .in_stride = experts.gate.cols,
                              .tokens = tokens,
                              .groups = groups.view(),
                              .route_weights = p.data(),
                              .route_weights_stride = routes,
                              .routes = routes,
                              .out = out.data(),
                              .out_stride = experts.gate.cols,
                              .scratch = scratch.data()};
    gpu_check(static_cast<cudaError_t>(triax_cuda_moe_prefill_sm90(&args, stream)), "launch");
  }
};

bool gate() {
  const Experts experts(6, 640, 384, 1);
  const Layer layer(experts, 300, 3);
  layer.launch(nullptr);
  const double error = testing::relative_rms(
      layer.out.get(), moe_double(experts, {.kind = Activation::Kind::kSitu}, layer.in_host,
                                  layer.ids, layer.p_host, 300, 3));
  std::fprintf(stderr, "gate: relative rms %.2e\n", error);
  return error < 4e-3;
}

void report(const char* bench, const char* shape, int64_t tokens, const GpuTime& time, double bytes,
            double flops) {
  const double tflops = flops / time.median_us * 1e-6;
  std::printf(
      "{\"bench\":\"%s\",\"shape\":\"%s T=%d\",\"us\":%.2f,\"p10\":%.2f,\"p90\":%.2f,"
      "\"bytes\":%.0f,\"flops\":%.0f,\"tflops\":%.1f,\"share\":%.3f}\n",
      bench, shape, static_cast<int>(tokens), time.median_us, time.p10_us, time.p90_us, bytes,
      flops, tflops, tflops / kPeakTflops);
}

void run(const Shape& shape, const Experts& experts, int64_t tokens) {
  const Layer layer(experts, tokens, shape.routes);
  const GpuTime time = testing::time_gpu([&](cudaStream_t stream) { layer.launch(stream); }, 2, 7);
  const double weights = 3.0 * static_cast<double>(shape.width * shape.hidden);
  report("moe_prefill", shape.name, tokens, time,
         weights * static_cast<double>(shape.experts) * 17.0 / 32.0,
         2.0 * weights * static_cast<double>(tokens * shape.routes));
}

int run_all(bool quick) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gate()) {
    std::fprintf(stderr, "gate failed\n");
    return 1;
  }
  const Shape shapes[] = {{"kimi-linear", 256, 2304, 1024, 8}, {"k3", 896, 3584, 3072, 16}};
  for (const Shape& shape : shapes) {
    const Experts experts(shape.experts, shape.width, shape.hidden, 1, 117, 121);
    const std::vector<int64_t> all = {256, 1024, 4096, 8192};
    for (const int64_t tokens : quick ? std::vector<int64_t>{8192} : all) {
      run(shape, experts, tokens);
    }
  }
  return 0;
}

}  // namespace
}  // namespace triax::width

int main(int argc, char** argv) {
  return triax::width::run_all(argc > 1 && std::string(argv[1]) == "--quick");
}
