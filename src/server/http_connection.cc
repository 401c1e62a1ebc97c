#include "server/http_connection.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "server/clock.h"
#include "server/http_answer.h"
#include "server/http_text.h"

namespace triax::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kAheadBytesMax = 64 << 10;  // of requests that come before the answer has ended
constexpr double kLingerSeconds = 2.0;

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

ApiError unreadable(const boost::system::error_code& error) {
  if (error == http::error::body_limit) {
    return {.http_status = 413, .code = "body_too_large", .message = "the body is too large"};
  }
  if (error == http::error::header_limit) {
    return {.http_status = 431, .message = "the header is too large"};
  }
  return {.http_status = 400, .message = fmt::format("no HTTP request: {}", error.message())};
}

}  // namespace

Connection::Connection(ConnectionHost& host, Socket socket)
    : host_(host), socket_(std::move(socket)) {
  Error error;
  const auto endpoint = socket_.remote_endpoint(error);
  peer_ = error ? std::string() : endpoint.address().to_string();
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  socket_.set_option(asio::socket_base::keep_alive(true), error);
  socket_.non_blocking(true, error);
}

Connection::~Connection() = default;

void Connection::enter(Phase phase, double seconds) {
  phase_ = phase;
  since_ = clock_seconds();
  deadline_ = since_ + seconds;
}

void Connection::start() { wait_for_request(); }

std::string_view Connection::header(std::string_view name) const {
  const auto& fields = parser_->get();
  const auto it = fields.find(boost::beast::string_view(name.data(), name.size()));
  return it == fields.end() ? std::string_view() : view(it->value());
}

void Connection::wait_for_request() {
  answer_.reset();
  parser_.reset();
  if (buffer_.size() > 0) {
    return read_header();  // it came while the last answer was on its way
  }
  if (host_.stopping()) {
    return drop();
  }
  buffer_ = {};  // a large request's memory is not kept
  enter(Phase::kIdle, host_.options().idle_seconds);
  reading_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](Error error) {
    self->reading_ = false;
    if (self->phase_ == Phase::kIdle) {
      error ? self->drop() : self->read_header();
    }
  });
}

void Connection::read_header() {
  enter(Phase::kReading, host_.options().request_seconds);
  answer_ = std::make_unique<Answer>();
  answer_->begun = since_;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(host_.options().header_bytes_max));
  parser_->body_limit(static_cast<std::uint64_t>(host_.service().model.limits.body_bytes));
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](Error error, size_t) { self->on_header(error); });
}

void Connection::on_header(Error error) {
  if (phase_ != Phase::kReading) {
    return;
  }
  if (error && error.category() != make_error_code(http::error::bad_method).category()) {
    return drop();  // of the socket
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message) {
    return drop();
  }
  last_ = true;
  if (error) {
    answer_->id = request_id({});
    return send_error(unreadable(error));
  }
  answer_->id = request_id(header("x-request-id"));
  answer_->head_only = parser_->get().method() == http::verb::head;
  answer_->http_1_0 = parser_->get().version() < 11;
  if (const std::optional<ApiError> refused = admit()) {
    return send_error(*refused);  // the body is not read: the connection ends
  }
  last_ = !parser_->get().keep_alive();
  read_body();
}

void Connection::read_body() {
  if (view(parser_->get()[http::field::expect]) == "100-continue" && !parser_->is_done()) {
    // Few bytes into an empty socket buffer; were they not taken, the client would go on anyway.
    Error ignored;
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    socket_.write_some(asio::buffer(kContinue.data(), kContinue.size()), ignored);
  }
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](Error error, size_t) { self->on_body(error); });
}

void Connection::on_body(Error error) {
  if (phase_ != Phase::kReading) {
    return;
  }
  if (!error) {
    return handle();
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != make_error_code(http::error::bad_method).category()) {
    return drop();
  }
  last_ = true;
  send_error(unreadable(error));
}

/// Whether the request's head lets it in. Finds its route.
std::optional<ApiError> Connection::admit() {
  const HttpOptions& options = host_.options();
  const auto& request = parser_->get();
  std::optional<Target> target = parse_target(view(request.target()));
  if (!target) {
    return ApiError{.message = "the target of the request is no path"};
  }
  answer_->method = view(request.method_string());
  answer_->target = std::move(*target);
  answer_->origin = header("origin");
  const bool own = answer_->origin == fmt::format("http://{}", header("host")) ||
                   answer_->origin == fmt::format("https://{}", header("host"));
  answer_->cors =
      !answer_->origin.empty() &&
      (std::ranges::find(options.cors_origins, "*") != options.cors_origins.end() ||
       std::ranges::find(options.cors_origins, answer_->origin) != options.cors_origins.end());
  if (!answer_->origin.empty() && !own && !answer_->cors) {
    // A page of somebody else's, in the browser of one who may reach this server.
    return ApiError{.http_status = 403,
                    .message = fmt::format("the origin '{}' is not allowed here; see --cors-origin",
                                           answer_->origin)};
  }
  if (answer_->cors && answer_->method == "OPTIONS") {
    answer_->preflight = true;
    return {};
  }
  const ApiResult<const Route*> route =
      find_route(host_.routes(), answer_->method, answer_->target.path);
  answer_->errors = error_shape_of(answer_->target.path);
  if (!options.keys.empty() && !(route.ok() && (*route)->open)) {
    std::string_view given = header("x-api-key");
    if (const std::string_view bearer = header("authorization"); bearer.starts_with("Bearer ")) {
      given = bearer.substr(7);
    }
    const int key = find_key(options.keys, given);
    if (key < 0) {
      return ApiError{.http_status = 401,
                      .code = "invalid_api_key",
                      .message = given.empty() ? "a key is needed: Authorization: Bearer KEY"
                                               : "the key is not known here"};
    }
    answer_->client = static_cast<uint64_t>(key) + 1;
  }
  if (!route.ok()) {
    return route.error();
  }
  answer_->route = *route;
  return {};
}

void Connection::handle() {
  if (answer_->preflight) {
    return send({.status = 204, .content_type = ""});
  }
  enter(Phase::kHandling, host_.options().request_seconds);
  HttpRequest request{.method = answer_->method,
                      .path = answer_->target.path,
                      .query = answer_->target.query,
                      .body = std::move(parser_->get().body()),
                      .accept = std::string(header("accept")),
                      .accept_encoding = std::string(header("accept-encoding")),
                      .if_none_match = std::string(header("if-none-match")),
                      .id = answer_->id};
  watch();
  host_.run_handler([self = shared_from_this(), route = answer_->route, &host = host_,
                     request = std::move(request)]() mutable {
    const auto safely = [&](auto handler) -> decltype(handler(request, host.service())) {
      try {
        return handler(request, host.service());
      } catch (const std::exception& error) {
        return ApiError{
            .http_status = 500,
            .type = "server_error",
            .message = fmt::format("the request could not be handled: {}", error.what())};
      }
    };
    if (route->call) {
      auto call = std::make_shared<ApiResult<Call>>(safely(route->call));
      host.run_here([self, call] { self->on_call(std::move(*call)); });
    } else {
      auto reply = std::make_shared<ApiResult<HttpReply>>(safely(route->reply));
      host.run_here([self, reply] { self->on_reply(std::move(*reply)); });
    }
  });
}

void Connection::on_reply(ApiResult<HttpReply> reply) {
  if (phase_ == Phase::kHandling) {
    reply.ok() ? send(std::move(*reply)) : send_error(reply.error());
  }
}

void Connection::on_call(ApiResult<Call> call) {
  if (phase_ != Phase::kHandling) {
    return;
  }
  if (!call.ok()) {
    return send_error(call.error());
  }
  answer_->writer = std::move(call->writer);
  answer_->stream = call->stream;
  for (const GenerationRequest& request : call->requests) {
    answer_->open_choices += request.choices;
  }
  answer_->ticket = host_.open_ticket(this);
  if (const std::optional<ApiError> refused = host_.service().worker.submit(
          answer_->ticket, std::move(call->requests), answer_->client)) {
    host_.close_ticket(std::exchange(answer_->ticket, 0));
    return send_error(*refused);
  }
  enter(Phase::kAnswering, 0.0);
}

/// Reads while an answer is under way: the next request's bytes, or that the client has left. One
/// who shuts only its own side counts as gone: the two look the same.
void Connection::watch() {
  if (reading_ || buffer_.size() >= kAheadBytesMax) {
    return;
  }
  reading_ = true;
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](Error error, size_t bytes) {
                            self->reading_ = false;
                            self->on_watch(error, bytes);
                          });
}

void Connection::on_watch(Error error, size_t bytes) {
  buffer_.commit(bytes);
  if (phase_ == Phase::kClosed) {
    return;
  }
  if (error) {
    return drop();
  }
  if (phase_ == Phase::kLinger) {
    buffer_.clear();
    return watch();
  }
  if (std::exchange(next_wanted_, false)) {
    return wait_for_request();
  }
  watch();
}

void Connection::take(std::vector<GenerationEvent> events) {
  for (const GenerationEvent& event : events) {
    if (phase_ != Phase::kAnswering || answer_->ticket == 0 || !take_event(event)) {
      return;
    }
  }
  flush();
}

/// False when the call has ended, with it or before.
bool Connection::take_event(const GenerationEvent& event) {
  Answer& a = *answer_;
  a.count(event, clock_seconds());
  const bool failed = event.kind == GenerationEvent::Kind::kFailed;
  if (failed && (!a.stream || !a.streaming)) {
    // Nothing is out yet: the whole call fails in HTTP's own terms.
    const ApiError error = event.error;
    if (a.open_choices > 1) {
      host_.service().worker.cancel(a.ticket);
    }
    host_.close_ticket(std::exchange(a.ticket, 0));
    send_error(error);
    return false;
  }
  if (a.stream && !a.streaming) {
    begin_stream();
  }
  std::string frames;
  a.writer->push(event, frames);
  if (a.stream) {
    put(frames);
  }
  if (failed || event.kind == GenerationEvent::Kind::kFinished) {
    --a.open_choices;
  }
  if (a.open_choices > 0) {
    return true;
  }
  end_call();
  return false;
}

void Connection::end_call() {
  Answer& a = *answer_;
  host_.close_ticket(std::exchange(a.ticket, 0));
  if (!a.stream) {
    return send({.body = a.writer->body()});
  }
  if (!a.http_1_0) {
    out_ += kLastChunk;
  }
  a.complete = true;
  flush();
}

void Connection::begin_stream() {
  Answer& a = *answer_;
  a.streaming = true;
  a.status = 200;
  if (a.http_1_0) {
    last_ = true;  // the end of the connection is the end of the body
  }
  std::vector<std::pair<std::string, std::string>> headers = {{"Cache-Control", "no-cache"},
                                                              {"X-Accel-Buffering", "no"}};
  add_cors(headers);
  last_ = last_ || host_.stopping();
  out_ += response_head({.content_type = "text/event-stream; charset=utf-8",
                         .id = a.id,
                         .keep_alive = !last_,
                         .chunked = !a.http_1_0,
                         .more = &headers});
  if (a.http_1_0) {
    // Without chunks nobody needs a length when the connection closes.
    const size_t at = out_.rfind("Content-Length: 0\r\n");
    out_.erase(at, std::string_view("Content-Length: 0\r\n").size());
  }
}

void Connection::put(std::string_view data) {
  if (data.empty()) {
    return;
  }
  answer_->bytes += static_cast<int64_t>(data.size());
  answer_->http_1_0 ? void(out_ += data) : append_chunk(data, out_);
}

void Connection::add_cors(std::vector<std::pair<std::string, std::string>>& headers) const {
  if (!answer_->cors) {
    return;
  }
  headers.emplace_back("Access-Control-Allow-Origin", answer_->origin);
  headers.emplace_back("Vary", "Origin");
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (answer_->preflight) {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    headers.emplace_back("Access-Control-Allow-Headers",
                         "Authorization, Content-Type, X-Api-Key, X-Request-Id, X-Session-Id, "
                         "Anthropic-Version, Anthropic-Beta");
    headers.emplace_back("Access-Control-Max-Age", "600");
  }
}

void Connection::send(HttpReply reply) {
  enter(Phase::kAnswering, 0.0);
  add_cors(reply.headers);
  Answer& a = *answer_;
  a.status = reply.status;
  a.bytes = static_cast<int64_t>(reply.body.size());
  a.complete = true;
  last_ = last_ || host_.stopping();
  out_ += response_head({.status = reply.status,
                         .content_type = reply.content_type,
                         .id = a.id,
                         .keep_alive = !last_,
                         .length = reply.body.size(),
                         .more = &reply.headers});
  if (!a.head_only) {
    out_ += reply.body;
  }
  flush();
}

void Connection::send_error(const ApiError& error) {
  HttpReply reply{.status = error.http_status,
                  .body = error_body(error, answer_->errors, answer_->id)};
  if (error.retry_after_s > 0.0) {
    reply.headers.emplace_back("Retry-After",
                               fmt::format("{:.0f}", std::ceil(error.retry_after_s)));
  }
  if (error.http_status == 401) {
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  send(std::move(reply));
}

void Connection::flush() {
  if (!writing_.empty() || phase_ == Phase::kClosed) {
    return;
  }
  if (out_.empty()) {
    if (answer_ != nullptr && answer_->complete) {
      end_answer();
    }
    return;
  }
  writing_.swap(out_);
  answer_->wrote = clock_seconds();
  asio::async_write(socket_, asio::buffer(writing_),
                    [self = shared_from_this()](Error error, size_t) { self->on_written(error); });
}

void Connection::on_written(Error error) {
  writing_.clear();
  if (phase_ == Phase::kClosed) {
    return;
  }
  error ? drop() : flush();
}

void Connection::end_answer() {
  record(answer_->status);
  if (last_) {
    return linger();
  }
  if (reading_) {
    next_wanted_ = true;  // watch() goes on as the wait for the next request
    answer_.reset();
    enter(Phase::kIdle, host_.options().idle_seconds);
    return;
  }
  wait_for_request();
}

void Connection::record(int status) {
  if (answer_ == nullptr || std::exchange(answer_->recorded, true)) {
    return;
  }
  if (host_.options().on_request) {
    host_.options().on_request(answer_->record(status, peer_, clock_seconds()));
  }
}

/// The client may still be sending: were the socket closed now, it might lose the answer.
void Connection::linger() {
  Error ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  enter(Phase::kLinger, kLingerSeconds);
  buffer_.clear();
  watch();
}

void Connection::drop() {
  if (phase_ == Phase::kClosed) {
    return;
  }
  const auto self = shared_from_this();
  if (answer_ != nullptr) {
    if (answer_->ticket != 0) {
      host_.service().worker.cancel(answer_->ticket);
      host_.close_ticket(answer_->ticket);
    }
    constexpr int kClientLeft = 499;
    if (phase_ == Phase::kHandling || phase_ == Phase::kAnswering) {
      record(kClientLeft);
    }
  }
  phase_ = Phase::kClosed;
  Error ignored;
  socket_.close(ignored);
  host_.remove(this);
}

void Connection::tick(double now) {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kReading:
    case Phase::kLinger:
      return now > deadline_ ? drop() : void();
    case Phase::kAnswering:
      if (!writing_.empty()) {
        return now - answer_->wrote > host_.options().write_seconds ? drop() : void();
      }
      if (answer_->stream && answer_->ticket != 0 &&
          now - std::max(answer_->wrote, answer_->begun) > host_.options().beat_seconds) {
        if (!answer_->streaming) {
          begin_stream();
        }
        put(": still here\n\n");
        flush();
      }
      return;
    case Phase::kHandling:
    case Phase::kClosed:
      return;
  }
}

void Connection::wind_down() {
  last_ = true;
  if (phase_ == Phase::kIdle) {
    drop();
  }
}

void Connection::cut() {
  if (phase_ == Phase::kClosed) {
    return;
  }
  if (phase_ == Phase::kAnswering && answer_->ticket != 0) {
    // Its own words for the end come first, as far as the socket takes them at once.
    const ApiError error{.http_status = 503,
                         .type = "server_error",
                         .code = "shutting_down",
                         .message = "the server is shutting down"};
    host_.service().worker.cancel(answer_->ticket);
    GenerationEvent event{.kind = GenerationEvent::Kind::kFailed, .error = error};
    std::vector<GenerationEvent> events;
    for (int32_t left = answer_->open_choices; left > 0; --left) {
      events.push_back(event);
    }
    take(std::move(events));
    return;
  }
  drop();
}

}  // namespace triax::server
