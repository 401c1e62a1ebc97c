// Status and Result: what they carry, and that misuse stops the process.
#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace triax {
namespace {

TEST(Status, DefaultIsOkWithoutMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
}

TEST(Status, EachConstructorKeepsItsCodeAndMessage) {
  const std::pair<Status, StatusCode> cases[] = {
      {Status::invalid_argument("m"), StatusCode::kInvalidArgument},
      {Status::not_found("m"), StatusCode::kNotFound},
      {Status::data_loss("m"), StatusCode::kDataLoss},
      {Status::resource_exhausted("m"), StatusCode::kResourceExhausted},
      {Status::unavailable("m"), StatusCode::kUnavailable},
      {Status::cancelled("m"), StatusCode::kCancelled},
      {Status::internal("m"), StatusCode::kInternal}};
  for (const auto& [status, code] : cases) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "m");
  }
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> seven = 7;
  EXPECT_TRUE(seven.ok());
  EXPECT_EQ(*seven, 7);
  const Result<int> none = Status::not_found("nothing here");
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
}

TEST(Result, GivesUpAMoveOnlyValue) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  EXPECT_EQ(**result, 3);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 3);
}

TEST(Result, MembersAreReachedThroughTheArrow) {
  Result<std::string> result = std::string("abc");
  result->push_back('d');
  EXPECT_EQ(result.value(), "abcd");
}

TEST(ResultDeathTest, ValueOfAFailureAbortsWithItsMessage) {
  const Result<int> none = Status::not_found("no such tensor");
  EXPECT_DEATH(static_cast<void>(none.value()), "no such tensor");
}

TEST(ResultDeathTest, AnOkStatusIsNoError) {
  EXPECT_DEATH(Result<int>{Status()}, "needs an error");
}

TEST(CheckDeathTest, NamesFileAndReason) {
  EXPECT_DEATH(check(false, "the sky fell"), "status_test.cc:.*check failed: the sky fell");
  check(true, "not this one");
}

}  // namespace
}  // namespace triax
