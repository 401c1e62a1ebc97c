// A Redis server of a test's own, on a socket in a folder of its own.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "store/redis_link.h"
#include "store/store_testing.h"

namespace triax::store {

class RedisServer {
 public:
  /// Null when this machine has no Redis; `why_not` then says so.
  static std::unique_ptr<RedisServer> start(std::vector<std::string> options,
                                            std::string* why_not) {
    std::unique_ptr<RedisServer> server(new RedisServer(std::move(options)));
    if (server->program_.empty()) {
      *why_not = "no redis-server on this machine (Debian: redis-tools, or redis-server)";
      return nullptr;
    }
    server->run();
    return server;
  }
  ~RedisServer() { stop(); }

  RedisAddress address() const {
    RedisAddress address;
    address.unix_socket = folder_.path() + "/redis.sock";
    return address;
  }

  void run() {
    std::vector<std::string> words = {"redis-server",
                                      "--port",
                                      "0",
                                      "--unixsocket",
                                      address().unix_socket,
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--dir",
                                      folder_.path(),
                                      "--daemonize",
                                      "no",
                                      "--logfile",
                                      folder_.path() + "/log"};
    words.insert(words.end(), options_.begin(), options_.end());
    std::vector<char*> argv;
    for (std::string& word : words) {
      argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    ::unlink(address().unix_socket.c_str());
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with the test, however that ends
      ::execv(program_.c_str(), argv.data());
      ::_exit(127);
    }
    for (int i = 0; i < 1000 && !(*RedisLink::create(address()))->ensure().ok(); ++i) {
      ::usleep(10'000);
    }
  }

  void stop() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

  void freeze() const { ::kill(pid_, SIGSTOP); }
  void thaw() const { ::kill(pid_, SIGCONT); }

  /// A command of the test's own; the integer or the text that comes back.
  std::string ask(const std::vector<std::string_view>& command) const;

 private:
  explicit RedisServer(std::vector<std::string> options) : options_(std::move(options)) {
    // Debian's redis-tools has the very program under another name; it goes by how it is called.
    for (const char* name : {"redis-server", "redis-check-rdb"}) {
      const char* path = std::getenv("PATH");
      std::istringstream folders(path == nullptr ? "/usr/bin" : path);
      for (std::string folder; program_.empty() && std::getline(folders, folder, ':');) {
        if (::access((folder + "/" + name).c_str(), X_OK) == 0) {
          program_ = folder + "/" + name;
        }
      }
    }
  }

  TemporaryFolder folder_;
  std::vector<std::string> options_;
  std::string program_;
  pid_t pid_ = -1;
};

}  // namespace triax::store
