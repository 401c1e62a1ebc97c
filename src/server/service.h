// What handlers may use.
#pragma once

#include "server/generation.h"
#include "server/worker.h"

namespace triax::server {

struct Service {
  const ModelInfo& model;
  Worker& worker;
};

}  // namespace triax::server
