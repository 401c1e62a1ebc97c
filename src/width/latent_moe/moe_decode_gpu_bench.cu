// Time and bytes of the one-launch decode of routed experts, K3's and Kimi Linear's shapes.
#include "width/latent_moe/moe_cases_sm90.cuh"

namespace triax::width {
namespace {

using namespace sm90_cases;
using testing::GpuTime;
using testing::random_floats;

constexpr double kCopyGbps = 4231.0;

struct Shape {
  const char* name;
  int64_t experts, width, hidden, routes;
};

MoeDecodeSm90 decode_args(const Experts& experts, int64_t tokens, int64_t routes,
                          const GpuArray<float>& in, const GpuArray<int32_t>& ids,
                          const GpuArray<float>& p, const GpuArray<float>& out,
                          const GpuArray<uint8_t>& scratch) {
  const int64_t width = experts.gate.cols;
  return {.weights = experts.view(),
          .activation = {.kind = Activation::Kind::kSitu},
          .in = in.data(),
          .in_stride = width,
          .tokens = tokens,
          .ids = ids.data(),
          .ids_stride = routes,
          .route_weights = p.data(),
          .route_weights_stride = routes,
          .routes = routes,
          .out = out.data(),
          .out_stride = width,
          .scratch = scratch.data()};
}

bool gate() {
  const Experts experts(24, 640, 384, 1);
  const auto in = random_floats(5 * 640, 2);
  const auto ids = random_routes(5, 8, 24, 3);
  const auto p = random_floats(40, 4, 0.1f, 0.3f);
  const GpuArray<float> in_d(in), p_d(p), out_d(5 * 640);
  const GpuArray<int32_t> ids_d(ids);
  const GpuArray<uint8_t> scratch(
      static_cast<size_t>(triax_cuda_moe_decode_sm90_scratch_bytes(5, 8, 640, 384)));
  gpu_check(cudaMemset(scratch.data(), 0, 256), "barrier");
  const MoeDecodeSm90 args = decode_args(experts, 5, 8, in_d, ids_d, p_d, out_d, scratch);
  gpu_check(static_cast<cudaError_t>(triax_cuda_moe_decode_sm90(&args, nullptr)), "launch");
  const double error =
      testing::relative_rms(out_d.get(), moe_double(experts, args.activation, in, ids, p, 5, 8));
  std::fprintf(stderr, "gate: relative rms %.2e\n", error);
  return error < 1e-5;
}

/// kChosen: with the router's logits in front and the choice of experts inside.
enum class Routing { kGiven, kChosen };

void run(const Shape& shape, const Experts& experts, int64_t tokens, Routing routing) {
  constexpr int kSets = 6;  // batches in turn, so that the L2 helps no one
  std::vector<GpuArray<int32_t>> ids;
  double visited = 0.0;
  for (int i = 0; i < kSets; ++i) {
    const auto routes = random_routes(tokens, shape.routes, shape.experts, 100 + i);
    std::vector<bool> hit(static_cast<size_t>(shape.experts));
    for (const int32_t e : routes) {
      hit[static_cast<size_t>(e)] = true;
    }
    visited += static_cast<double>(std::count(hit.begin(), hit.end(), true)) / kSets;
    ids.emplace_back(routes);
  }
  const GpuArray<float> in(random_floats(static_cast<size_t>(tokens * shape.width), 2));
  const GpuArray<float> p(random_floats(static_cast<size_t>(tokens * shape.routes), 4, 0.1f, 0.3f));
  const GpuArray<float> out(static_cast<size_t>(tokens * shape.width));
  const GpuArray<uint8_t> scratch(static_cast<size_t>(
      triax_cuda_moe_decode_sm90_scratch_bytes(tokens, shape.routes, shape.width, shape.hidden)));
  gpu_check(cudaMemset(scratch.data(), 0, 256), "barrier");
  const bool chosen = routing == Routing::kChosen;
  const GpuArray<__nv_bfloat16> gate(
      testing::to_bf16(random_floats(static_cast<size_t>(shape.experts * shape.width), 7, 0.02f)));
  // A bias for each batch, so that other experts are chosen.
  const GpuArray<float> bias(random_floats(static_cast<size_t>(kSets * shape.experts), 8, 0.3f));
  const GpuArray<float> logits(static_cast<size_t>(tokens * shape.experts));
  RouterLogitsCuda router{.in = in.data(),
                          .in_stride = shape.width,
                          .tokens = tokens,
                          .gate = {},
                          .logits = logits.data()};
  router.gate.format = MatrixFormat::kBf16;
  router.gate.rows = shape.experts;
  router.gate.cols = shape.width;
  router.gate.data = gate.data();
  int turn = 0;
  const GpuTime time = testing::time_gpu(
      [&](cudaStream_t stream) {
        const int set = turn++ % kSets;
        MoeDecodeSm90 args = decode_args(experts, tokens, shape.routes, in,
                                         ids[static_cast<size_t>(set)], p, out, scratch);
        if (chosen) {
          gpu_check(static_cast<cudaError_t>(triax_cuda_router_logits_sm90(&router, stream)),
                    "router");
          args.routes_from = MoeRoutes::kLogits;
          args.logits = logits.data();
          args.choice.bias = bias.data() + set * shape.experts;
        }
        gpu_check(static_cast<cudaError_t>(triax_cuda_moe_decode_sm90(&args, stream)), "launch");
      },
      kSets, 11);
  const double weights = 3.0 * static_cast<double>(shape.width * shape.hidden);
  const double bytes = visited * weights * 17.0 / 32.0;
  const double flops = 2.0 * weights * static_cast<double>(tokens * shape.routes);
  const double gbps = bytes / time.median_us * 1e-3;
  std::printf(
      "{\"bench\":\"%s\",\"shape\":\"%s T=%d visited=%.1f\",\"us\":%.2f,\"p10\":%.2f,"
      "\"p90\":%.2f,\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.0f,\"share\":%.3f}\n",
      chosen ? "moe_route_decode" : "moe_decode", shape.name, static_cast<int>(tokens), visited,
      time.median_us, time.p10_us, time.p90_us, bytes, flops, gbps, gbps / kCopyGbps);
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
    const std::vector<int64_t> all = {1, 2, 4, 8, 16, 32, 64};
    for (const int64_t tokens : quick ? std::vector<int64_t>{1, 8, 64} : all) {
      run(shape, experts, tokens, Routing::kGiven);
    }
    run(shape, experts, 1, Routing::kChosen);
  }
  return 0;
}

}  // namespace
}  // namespace triax::width

int main(int argc, char** argv) {
  return triax::width::run_all(argc > 1 && std::string(argv[1]) == "--quick");
}
