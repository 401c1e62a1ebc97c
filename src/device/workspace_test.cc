// Scratch memory: aligned, nested, reused, never handed out twice at a time.
#include "device/workspace.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "device/device.h"

namespace triax {
namespace {

TEST(Workspace, EveryPieceIsAlignedTo256Bytes) {
  Workspace workspace;
  Workspace::Scope scope(workspace);
  for (int64_t count : {0, 1, 3, 63, 64, 65, 1000, 2000000}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scope.take<char>(count)) % 256, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scope.take<double>(count)) % 256, 0U);
  }
}

TEST(Workspace, PiecesOfNestedScopesDoNotOverlap) {
  Workspace workspace;
  Rng rng(5);
  std::vector<std::pair<unsigned char*, int64_t>> pieces;
  const auto take = [&](Workspace::Scope& scope) {
    const int64_t bytes = static_cast<int64_t>(rng.below(600000));
    unsigned char* piece = scope.take<unsigned char>(bytes);
    std::memset(piece, static_cast<int>(pieces.size()), static_cast<size_t>(bytes));
    pieces.emplace_back(piece, bytes);
  };
  Workspace::Scope outer(workspace);
  for (int i = 0; i < 10; ++i) {
    take(outer);
  }
  Workspace::Scope inner(workspace);
  for (int i = 0; i < 10; ++i) {
    take(inner);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (int64_t j = 0; j < pieces[i].second; ++j) {
      ASSERT_EQ(pieces[i].first[j], static_cast<unsigned char>(i)) << i << " at " << j;
    }
  }
}

TEST(Workspace, AStepThatRepeatsGetsTheSameMemoryAndHoldsNoMore) {
  Workspace workspace;
  std::vector<void*> first;
  int64_t held = 0;
  for (int step = 0; step < 4; ++step) {
    std::vector<void*> pieces;
    Workspace::Scope outer(workspace);
    pieces.push_back(outer.take<float>(1000));
    for (int layer = 0; layer < 3; ++layer) {
      Workspace::Scope inner(workspace);
      pieces.push_back(inner.take<float>(500000));
      pieces.push_back(inner.take<float>(900000));
    }
    pieces.push_back(outer.take<float>(1000));
    if (step == 0) {
      first = pieces;
      held = workspace.bytes_held();
      EXPECT_GT(held, 0);
    }
    EXPECT_EQ(pieces, first);
    EXPECT_EQ(workspace.bytes_held(), held);
  }
}

TEST(Workspace, APieceLargerThanAllBlocksIsServed) {
  Workspace workspace;
  Workspace::Scope scope(workspace);
  scope.take<char>(1);
  const int64_t bytes = int64_t{40} << 20;
  char* piece = scope.take<char>(bytes);
  piece[0] = piece[bytes - 1] = 1;
  EXPECT_GE(workspace.bytes_held(), bytes);
}

TEST(Workspace, HoldsNothingBeforeItsFirstUse) {
  const Workspace workspace;
  EXPECT_EQ(workspace.bytes_held(), 0);
}

TEST(WorkspaceDeathTest, AnOuterScopeTakesNothingWhileAnInnerOneLives) {
  Workspace workspace;
  Workspace::Scope outer(workspace);
  Workspace::Scope inner(workspace);
  EXPECT_DEATH(outer.take<char>(1), "innermost scope");
}

TEST(WorkspaceDeathTest, SizesThatOverflowAbort) {
  Workspace workspace;
  Workspace::Scope scope(workspace);
  EXPECT_DEATH(scope.take<double>(-1), "out of range");
  EXPECT_DEATH(scope.take<double>(int64_t{1} << 61), "out of range");
}

TEST(Device, OwnedDeviceHandsOutItsParts) {
  const OwnedDevice owned(Backend::kReference, Isa::kAvx2, 2);
  const Device& device = owned;
  EXPECT_EQ(device.backend, Backend::kReference);
  EXPECT_EQ(device.isa, Isa::kAvx2);
  ASSERT_NE(device.threads, nullptr);
  EXPECT_EQ(device.threads->threads(), 2);
  Workspace::Scope scope(*device.workspace);
  EXPECT_NE(scope.take<int>(1), nullptr);
}

TEST(Device, BackendsHaveTheNamesOfTheCommandLine) {
  EXPECT_EQ(backend_name(Backend::kReference), "reference");
  EXPECT_EQ(backend_name(Backend::kCpu), "cpu");
  EXPECT_EQ(backend_name(Backend::kCuda), "cuda");
}

}  // namespace
}  // namespace triax
