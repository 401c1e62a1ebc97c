// What the server says of itself: /v1/models, /health, /ready.
#pragma once

#include "server/routes.h"

namespace triax::server {

ApiResult<HttpReply> handle_models(const HttpRequest& request, const Service& service);
/// /v1/models/NAME
ApiResult<HttpReply> handle_model(const HttpRequest& request, const Service& service);
/// 200 while the process can do its work, draining included; 503 once the engine has failed.
ApiResult<HttpReply> handle_health(const HttpRequest& request, const Service& service);
/// 200 when a request would be taken now; 503 while draining, with a full queue, or failed.
ApiResult<HttpReply> handle_ready(const HttpRequest& request, const Service& service);

}  // namespace triax::server
