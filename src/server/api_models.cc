#include "server/api_models.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/service.h"

namespace triax::server {
namespace {

using Json = nlohmann::ordered_json;

Json model_json(const ModelInfo& model, const std::string& name) {
  return {{"id", name},          {"object", "model"}, {"created", model.created},
          {"owned_by", "triax"}, {"root", model.id},  {"max_model_len", model.context_tokens}};
}

HttpReply state(bool fine, std::string_view status, const Worker& worker) {
  return {.status = fine ? 200 : 503,
          .body = json_text(Json{{"status", status},
                                 {"queued", worker.queued()},
                                 {"running", worker.running()},
                                 {"step_seconds", worker.step_age()}})};
}

}  // namespace

ApiResult<HttpReply> handle_models(const HttpRequest&, const Service& service) {
  Json data = Json::array({model_json(service.model, service.model.id)});
  for (const std::string& alias : service.model.aliases) {
    data.push_back(model_json(service.model, alias));
  }
  return HttpReply{.body = json_text(Json{{"object", "list"}, {"data", std::move(data)}})};
}

ApiResult<HttpReply> handle_model(const HttpRequest& request, const Service& service) {
  constexpr std::string_view kPrefix = "/v1/models/";
  const std::string name = request.path.substr(kPrefix.size());
  const std::vector<std::string>& aliases = service.model.aliases;
  if (name != service.model.id && std::ranges::find(aliases, name) == aliases.end()) {
    return ApiError{.http_status = 404,
                    .code = "model_not_found",
                    .message = fmt::format("model: there is no '{}'; this server has '{}'", name,
                                           service.model.id),
                    .param = "model"};
  }
  return HttpReply{.body = json_text(model_json(service.model, name))};
}

ApiResult<HttpReply> handle_health(const HttpRequest&, const Service& service) {
  const Worker& worker = service.worker;
  return state(!worker.broken(), worker.broken() ? "failed" : "ok", worker);
}

ApiResult<HttpReply> handle_ready(const HttpRequest&, const Service& service) {
  const Worker& worker = service.worker;
  if (worker.broken()) {
    return state(false, "failed", worker);
  }
  if (worker.draining()) {
    return state(false, "draining", worker);
  }
  return worker.full() ? state(false, "queue full", worker) : state(true, "ready", worker);
}

}  // namespace triax::server
