// One line of a trace as it is parsed, without a tree in between. Only trace_reader.cc includes
// this.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/trace.h"

namespace triax::replay {

/// A request's fields as they come.
struct RawRequest {
  double t = -1.0;
  double api_s = -1.0;
  double think_s = -1.0;
  double in = -1.0;
  double out = -1.0;
  bool subagent = false;
  std::string stop;
  std::vector<uint64_t> ids;
  bool has_ids = false;
  int32_t agent = 0;
};

/// Events of nlohmann's parser into a RawLine. Fields that it does not know are skipped, wherever
/// they nest.
class TraceSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string id;
  double block_size = 64;
  double tool_tokens = 0;
  double system_tokens = 0;
  RawRequest line;  // a line that is itself a request (Mooncake)
  std::vector<RawRequest> requests;
  std::string error;  // not empty: parsing was stopped

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    return value < 0 && in_ids() ? fail("a negative number in hash_ids")
                                 : number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (in_ids()) {
      request().ids.push_back(value);
      return true;
    }
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    return in_ids() ? fail("a fraction in hash_ids") : number(value);
  }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool key(string_t& value) override {
    key_.swap(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& why) override;

 private:
  enum class Scope : uint8_t { kLine, kRequests, kRequest, kIds, kSkip };
  static constexpr size_t kDepthMax = 64;
  static constexpr int32_t kAgentsMax = 1 << 16;

  bool in_ids() const { return !scopes_.empty() && scopes_.back() == Scope::kIds; }
  bool in_request() const { return !scopes_.empty() && scopes_.back() == Scope::kRequest; }
  bool in_line() const { return !scopes_.empty() && scopes_.back() == Scope::kLine; }
  RawRequest& request() { return open_.empty() ? line : open_.back().request; }
  bool number(double value);
  bool enter(Scope scope);
  bool fail(std::string what);

  struct Open {
    RawRequest request;
    size_t first_child = 0;  // requests[first_child..] lie inside it
    int32_t agent_outside = 0;
  };
  std::vector<Scope> scopes_;
  std::vector<Open> open_;
  std::string key_;
  int32_t agent_ = 0;
  int32_t agents_ = 1;
};

}  // namespace triax::replay
