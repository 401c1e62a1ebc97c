// What the server answers to: one line a method and path. Handlers know no sockets.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/generation.h"

namespace triax::server {

struct Service;  // service.h: the model and the worker

struct HttpRequest {
  std::string method;           // "GET"
  std::string path;             // decoded, without the query: "/v1/models"
  std::string query;            // as it came, without '?'
  std::string body;             // at most Limits::body_bytes
  std::string accept;           // the header of that name
  std::string accept_encoding;  // likewise
  std::string if_none_match;    // likewise
  std::string id;               // x-request-id: the client's, else one of ours
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};  // more
};

/// One of `call` and `reply` is set. Both run on a thread of their own kind, several at once, never
/// on the one that steps the model; neither may wait for that.
struct Route {
  std::string method;
  std::string path;  // "/v1/models/*": what follows, not empty, may hold further '/'
  ErrorShape errors = ErrorShape::kOpenAi;
  bool open = false;  // needs no key
  /// Generates: reads the request into a call.
  std::function<ApiResult<Call>(const HttpRequest&, const Service&)> call = {};
  /// Answers at once.
  std::function<ApiResult<HttpReply>(const HttpRequest&, const Service&)> reply = {};
};

/// All routes. Each API adds its lines in routes.cc.
std::vector<Route> make_routes();

/// The route of a request. Errors: 404, or 405 when the path has other methods.
ApiResult<const Route*> find_route(const std::vector<Route>& routes, std::string_view method,
                                   std::string_view path);

/// The body as JSON: an object, within the limits of text::parse_json.
/// Errors     400 with the position
ApiResult<nlohmann::ordered_json> json_body(const HttpRequest& request);

}  // namespace triax::server
