#include "replay/trace_sax.h"

#include <fmt/format.h>

namespace triax::replay {

bool TraceSax::fail(std::string what) {
  error = std::move(what);
  return false;
}

bool TraceSax::enter(Scope scope) {
  if (scopes_.size() >= kDepthMax) {
    return fail(fmt::format("nested deeper than {}", kDepthMax));
  }
  scopes_.push_back(scope);
  return true;
}

bool TraceSax::number(double value) {
  if (in_request() || in_line()) {
    RawRequest& r = request();
    if (key_ == "t") {
      r.t = value;
    } else if (key_ == "timestamp") {
      r.t = value / 1000.0;
    } else if (key_ == "in" || key_ == "input_length") {
      r.in = value;
    } else if (key_ == "out" || key_ == "output_length") {
      r.out = value;
    } else if (key_ == "api_time") {
      r.api_s = value;
    } else if (key_ == "think_time") {
      r.think_s = value;
    }
  }
  if (in_line()) {
    if (key_ == "block_size") {
      block_size = value;
    } else if (key_ == "tool_tokens") {
      tool_tokens = value;
    } else if (key_ == "system_tokens") {
      system_tokens = value;
    }
  }
  return true;
}

bool TraceSax::string(string_t& value) {
  if (in_ids()) {
    return fail("a string in hash_ids");
  }
  if (in_line() && key_ == "id") {
    id = value;
  } else if (in_request() && key_ == "stop") {
    request().stop = value;
  } else if (in_request() && key_ == "type") {
    request().subagent = value == "subagent";
  }
  return true;
}

bool TraceSax::start_object(std::size_t) {
  if (scopes_.empty()) {
    return enter(Scope::kLine);
  }
  if (in_ids()) {
    return fail("an object in hash_ids");
  }
  if (scopes_.back() != Scope::kRequests) {
    return enter(Scope::kSkip);
  }
  Open open;
  open.first_child = requests.size();
  open.agent_outside = agent_;
  open.request.agent = agent_;
  open_.push_back(std::move(open));
  return enter(Scope::kRequest);
}

bool TraceSax::end_object() {
  const Scope scope = scopes_.back();
  scopes_.pop_back();
  if (scope != Scope::kRequest) {
    return true;
  }
  Open open = std::move(open_.back());
  open_.pop_back();
  agent_ = open.agent_outside;
  if (!open.request.subagent) {
    if (open.first_child != requests.size()) {
      return fail("requests inside a request that is no subagent");
    }
    requests.push_back(std::move(open.request));
    return true;
  }
  if (!(open.request.t >= 0.0)) {
    return fail("a subagent without t");
  }
  for (size_t i = open.first_child; i < requests.size(); ++i) {
    requests[i].t += requests[i].t >= 0.0 ? open.request.t : 0.0;
  }
  return true;
}

bool TraceSax::start_array(std::size_t) {
  if (scopes_.empty()) {
    return fail("an array, expected an object");
  }
  if (in_ids()) {
    return fail("an array in hash_ids");
  }
  if (key_ == "hash_ids" && (in_request() || in_line())) {
    request().ids.clear();
    request().has_ids = true;
    return enter(Scope::kIds);
  }
  if (key_ == "requests" && (in_request() || in_line())) {
    if (in_request()) {
      if (agents_ >= kAgentsMax) {
        return fail(fmt::format("more than {} agents", kAgentsMax));
      }
      agent_ = agents_++;
    }
    return enter(Scope::kRequests);
  }
  return enter(Scope::kSkip);
}

bool TraceSax::end_array() {
  scopes_.pop_back();
  return true;
}

bool TraceSax::parse_error(std::size_t position, const std::string&,
                           const nlohmann::json::exception&) {
  return fail(fmt::format("no JSON from byte {} on", position));
}

}  // namespace triax::replay
