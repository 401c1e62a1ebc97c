#include "server/http_server.h"

#include <fmt/core.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <csignal>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "server/clock.h"
#include "server/http_connection.h"

namespace triax::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

namespace {
constexpr size_t kHandlerThreads = 2;
constexpr auto kTick = std::chrono::milliseconds(250);
constexpr auto kAcceptPause =
    std::chrono::milliseconds(100);  // when the system has no more sockets
}  // namespace

struct HttpServer::Impl final : ConnectionHost {
  Impl(const HttpOptions& o, Service& s)
      : options_(o),
        service_(s),
        routes_(make_routes()),
        io(1),
        acceptor(io),
        timer(io),
        accept_timer(io),
        signals(io),
        handlers(kHandlerThreads) {}

  const HttpOptions& options() const override { return options_; }
  Service& service() override { return service_; }
  const std::vector<Route>& routes() const override { return routes_; }
  bool stopping() const override { return stopping_; }
  void run_handler(std::function<void()> task) override { asio::post(handlers, std::move(task)); }
  void run_here(std::function<void()> task) override { asio::post(io, std::move(task)); }

  Ticket open_ticket(Connection* connection) override {
    tickets.emplace(++last_ticket, connection);
    return last_ticket;
  }
  void close_ticket(Ticket ticket) override { tickets.erase(ticket); }
  void remove(Connection* connection) override {
    connections.erase(connection);
    connection_count = static_cast<int64_t>(connections.size());
    end_if_done();
  }

  Status open();
  void accept();
  void accepted(tcp::socket socket);
  void tick();
  void deliver(std::vector<Delivery> deliveries);
  void wait_for_signal();
  void begin_stop();
  void end_now();
  void end_if_done();

  const HttpOptions options_;
  Service& service_;
  const std::vector<Route> routes_;
  asio::io_context io;
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  asio::steady_timer accept_timer;
  asio::signal_set signals;
  asio::thread_pool handlers;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::unordered_map<Ticket, Connection*> tickets;
  std::atomic<int64_t> connection_count = 0;
  Ticket last_ticket = 0;
  bool stopping_ = false;
  bool ending = false;
  double stop_deadline = 0.0;
};

Status HttpServer::Impl::open() {
  Error error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options_.host, fmt::format("{}", options_.port),
                                      tcp::resolver::passive, error);
  if (error || found.empty()) {
    return Status::unavailable(
        fmt::format("server: '{}' is no address: {}", options_.host, error.message()));
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) {
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    acceptor.bind(endpoint, error);
  }
  if (!error) {
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    return Status::unavailable(fmt::format("server: cannot listen on {} port {}: {}", options_.host,
                                           options_.port, error.message()));
  }
  // From here on, so that a signal before run() ends it, too, and not the process.
  if (options_.stop_on_signals) {
    signals.add(SIGINT);
    signals.add(SIGTERM);
    wait_for_signal();
  }
  return {};
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](Error error, tcp::socket socket) {
    if (stopping_ || error == asio::error::operation_aborted) {
      return;
    }
    if (error) {
      accept_timer.expires_after(kAcceptPause);
      accept_timer.async_wait([this](Error cancelled) { cancelled ? void() : accept(); });
      return;
    }
    accepted(std::move(socket));
    accept();
  });
}

void HttpServer::Impl::accepted(tcp::socket socket) {
  if (static_cast<int64_t>(connections.size()) >= options_.connections_max) {
    // Room for who comes: the connection that has been idle for longest goes.
    Connection* oldest = nullptr;
    for (const auto& [connection, owner] : connections) {
      if (connection->idle() && (oldest == nullptr || connection->since() < oldest->since())) {
        oldest = connection;
      }
    }
    if (oldest == nullptr) {
      return;  // closes the socket
    }
    oldest->wind_down();
  }
  auto connection = std::make_shared<Connection>(*this, std::move(socket));
  connections.emplace(connection.get(), connection);
  connection_count = static_cast<int64_t>(connections.size());
  connection->start();
}

void HttpServer::Impl::tick() {
  timer.expires_after(kTick);
  timer.async_wait([this](Error error) {
    if (error) {
      return;
    }
    const double now = clock_seconds();
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(connections.size());
    for (const auto& [key, connection] : connections) {
      all.push_back(connection);
    }
    for (const auto& connection : all) {
      connection->tick(now);
    }
    if (stopping_ && now > stop_deadline) {
      end_now();
    }
    tick();
  });
}

void HttpServer::Impl::deliver(std::vector<Delivery> deliveries) {
  for (Delivery& delivery : deliveries) {
    if (const auto it = tickets.find(delivery.ticket); it != tickets.end()) {
      const auto connection = connections.at(it->second);
      connection->take(std::move(delivery.events));
    }
  }
}

void HttpServer::Impl::wait_for_signal() {
  signals.async_wait([this](Error error, int) {
    if (!error) {
      stopping_ ? end_now() : begin_stop();
      wait_for_signal();
    }
  });
}

void HttpServer::Impl::begin_stop() {
  stopping_ = true;
  stop_deadline = clock_seconds() + options_.drain_seconds;
  service_.worker.drain();
  Error ignored;
  acceptor.close(ignored);
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [key, connection] : connections) {
    all.push_back(connection);
  }
  for (const auto& connection : all) {
    connection->wind_down();
  }
  end_if_done();
}

/// Answers under way are told so, then everything closes.
void HttpServer::Impl::end_now() {
  if (std::exchange(ending, true)) {
    return io.stop();  // it was told before and somebody still does not read
  }
  stop_deadline = clock_seconds() + 1.0;
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [key, connection] : connections) {
    all.push_back(connection);
  }
  for (const auto& connection : all) {
    connection->cut();
  }
  end_if_done();
}

void HttpServer::Impl::end_if_done() {
  if (stopping_ && connections.empty()) {
    io.stop();
  }
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  impl_->service_.worker.stop();
  impl_->handlers.join();
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options,
                                                       Service& service) {
  auto impl = std::make_unique<Impl>(options, service);
  if (Status s = impl->open(); !s.ok()) {
    return s;
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const {
  Error ignored;
  return impl_->acceptor.local_endpoint(ignored).port();
}

int64_t HttpServer::connections() const { return impl_->connection_count; }

void HttpServer::stop() {
  asio::post(impl_->io,
             [impl = impl_.get()] { impl->stopping_ ? impl->end_now() : impl->begin_stop(); });
}

void HttpServer::run() {
  Impl& impl = *impl_;
  impl.service_.worker.start([&impl](std::vector<Delivery> deliveries) {
    // A function object of the standard library must be copyable.
    auto held = std::make_shared<std::vector<Delivery>>(std::move(deliveries));
    asio::post(impl.io, [&impl, held] { impl.deliver(std::move(*held)); });
  });
  impl.accept();
  impl.tick();
  impl.io.run();
  impl.service_.worker.stop();
  impl.handlers.join();
}

}  // namespace triax::server
