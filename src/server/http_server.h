// HTTP/1.1 on a socket: who may connect, how long and how much; requests to handlers, answers back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/routes.h"
#include "server/service.h"

namespace triax::server {

/// What one request came to, for the access log. Holds no text of the request but its path.
struct AccessRecord {
  std::string id;
  std::string peer;  // address of the client
  std::string method;
  std::string path;
  int status = 0;     // 499: the client left before the answer was complete
  int64_t bytes = 0;  // of the answer
  double seconds = 0.0;
  double first_token_seconds = 0.0;  // 0: none
  GenerationUsage usage = {};        // all choices together
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                        // 0: any free one
  std::vector<std::string> keys;          // empty: everybody may
  std::vector<std::string> cors_origins;  // "*": any
  int64_t connections_max = 4096;
  int64_t header_bytes_max = int64_t{64} << 10;
  double idle_seconds = 900.0;     // between two requests of a connection
  double request_seconds = 120.0;  // from a request's first byte to its last
  double write_seconds = 120.0;    // a client that takes nothing for so long is gone
  double beat_seconds = 10.0;      // a comment in a stream that says nothing
  double drain_seconds = 30.0;     // for answers under way when the server is told to end
  bool stop_on_signals = false;    // SIGINT and SIGTERM call stop()
  std::function<void(const AccessRecord&)> on_request = {};  // on the server's thread
};

/// Serves until it is told to stop. One thread for all sockets (that of run()), two that read
/// requests, one that steps the model (the worker's).
class HttpServer {
 public:
  /// Opens the socket. `service` outlives this.
  /// Errors     kUnavailable when the address cannot be had
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options, Service& service);
  ~HttpServer();

  int port() const;
  /// Serves; returns when stop() was called and every answer has ended or its time is over.
  void run();
  /// From any thread: takes no more requests, lets those under way end. Called twice: ends them
  /// now.
  void stop();
  int64_t connections() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace triax::server
