#include "server/routes.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "server/api_axes.h"
#include "server/api_chat.h"
#include "server/api_completions.h"
#include "server/api_models.h"
#include "server/page.h"
#include "text/json_text.h"

namespace triax::server {
namespace {

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("/*")) {
    return pattern == path;
  }
  pattern.remove_suffix(1);
  return path.starts_with(pattern) && path.size() > pattern.size();
}

}  // namespace

std::vector<Route> make_routes() {
  std::vector<Route> routes = {
      {.method = "POST", .path = "/v1/chat/completions", .call = handle_chat},
      {.method = "POST", .path = "/v1/completions", .call = handle_completion},
      {.method = "GET", .path = "/v1/models", .reply = handle_models},
      {.method = "GET", .path = "/v1/models/*", .reply = handle_model},
      {.method = "GET", .path = "/health", .open = true, .reply = handle_health},
      {.method = "GET", .path = "/ready", .open = true, .reply = handle_ready},
      axes_route(),
  };
  add_page_routes(routes);
  return routes;
}

ApiResult<const Route*> find_route(const std::vector<Route>& routes, std::string_view method,
                                   std::string_view path) {
  bool known = false;
  for (const Route& route : routes) {
    if (matches(route.path, path)) {
      // HEAD is GET without a body, which the writer leaves away.
      if (route.method == method || (method == "HEAD" && route.method == "GET")) {
        return &route;
      }
      known = true;
    }
  }
  if (known) {
    return ApiError{.http_status = 405, .message = fmt::format("{} is not for {}", method, path)};
  }
  return ApiError{.http_status = 404,
                  .type = "not_found_error",
                  .message = fmt::format("there is no {}", path)};
}

ApiResult<nlohmann::ordered_json> json_body(const HttpRequest& request) {
  Result<nlohmann::ordered_json> body = text::parse_json(request.body);
  if (!body.ok()) {
    return ApiError::from_status(
        Status::invalid_argument("body: " + std::string(body.status().message())));
  }
  if (!body->is_object()) {
    return ApiError::bad_field("body", "expected an object, found " + shown(*body));
  }
  return std::move(*body);
}

}  // namespace triax::server
