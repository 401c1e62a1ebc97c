// One client's connection: requests one after the other, each answered whole or as a stream.
// Internal to the HTTP server; all of it runs on the server's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>  // Asio 1.74 needs it first
#include <vector>

#include "server/http_server.h"

namespace triax::server {

/// What connections need of their server.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual const HttpOptions& options() const = 0;
  virtual Service& service() = 0;
  virtual const std::vector<Route>& routes() const = 0;
  virtual bool stopping() const = 0;
  /// Runs `task` on a thread for handlers.
  virtual void run_handler(std::function<void()> task) = 0;
  /// Runs `task` on the server's thread.
  virtual void run_here(std::function<void()> task) = 0;
  /// Events of the ticket come to this connection until close_ticket.
  virtual Ticket open_ticket(class Connection* connection) = 0;
  virtual void close_ticket(Ticket ticket) = 0;
  virtual void remove(class Connection* connection) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  Connection(ConnectionHost& host, Socket socket);
  ~Connection();

  void start();
  /// What the call under way has given.
  void take(std::vector<GenerationEvent> events);
  /// Once a second: deadlines, signs of life in streams that say nothing.
  void tick(double now);
  /// The server ends: at once when nothing is under way, after the answer otherwise.
  void wind_down();
  /// The server ends now.
  void cut();
  bool idle() const { return phase_ == Phase::kIdle; }
  double since() const { return since_; }

 private:
  enum class Phase {
    kIdle,       // waits for a request's first byte
    kReading,    // the rest of the request
    kHandling,   // a handler has it
    kAnswering,  // events come, or what has been written is on its way
    kLinger,     // the answer is out and the connection ends: what still comes is thrown away
    kClosed,
  };
  struct Answer;  // to the request under way
  using Error = boost::system::error_code;

  void enter(Phase phase, double seconds);
  void wait_for_request();
  void read_header();
  void on_header(Error error);
  std::optional<ApiError> admit();
  void read_body();
  void on_body(Error error);
  void handle();
  void on_call(ApiResult<Call> call);
  void on_reply(ApiResult<HttpReply> reply);

  void watch();
  void on_watch(Error error, size_t bytes);

  bool take_event(const GenerationEvent& event);
  void begin_stream();
  void end_call();
  void send(HttpReply reply);
  void send_error(const ApiError& error);
  void add_cors(std::vector<std::pair<std::string, std::string>>& headers) const;
  void put(std::string_view data);
  void flush();
  void on_written(Error error);
  void end_answer();
  void record(int status);
  void linger();
  void drop();

  std::string_view header(std::string_view name) const;

  ConnectionHost& host_;
  Socket socket_;
  std::string peer_;
  Phase phase_ = Phase::kIdle;
  double since_ = 0.0;     // when the phase began
  double deadline_ = 0.0;  // when it is over

  boost::beast::flat_buffer buffer_;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  std::optional<Parser> parser_;
  bool reading_ = false;      // a read is under way
  bool next_wanted_ = false;  // the answer ended while watch() reads
  bool last_ = false;         // the connection ends with this answer

  std::unique_ptr<Answer> answer_;
  std::string out_;      // to be written
  std::string writing_;  // being written
};

}  // namespace triax::server
