#include "store/blob_store.h"

#include <future>
#include <utility>

namespace triax::store {
namespace {

// Calls submit(done) and waits for what done is called with.
template <typename T, typename Submit>
T wait_for(Submit&& submit) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> future = promise->get_future();
  submit([promise](T outcome) { promise->set_value(std::move(outcome)); });
  return future.get();
}

}  // namespace

Clock system_clock_ms() {
  return [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
}

Status BlobStore::put_now(PutRequest request) {
  return wait_for<Status>([&](Done done) { put(std::move(request), std::move(done)); });
}

std::vector<Status> BlobStore::get_now(std::vector<BlobTarget> targets) {
  return wait_for<std::vector<Status>>(
      [&](GetDone done) { get(std::move(targets), std::move(done)); });
}

Status BlobStore::get_now(BlobTarget target) { return get_now(std::vector{std::move(target)})[0]; }

Result<Found> BlobStore::find_now(BlobKey key) {
  return wait_for<Result<Found>>([&](FindDone done) { find(key, std::move(done)); });
}

Status BlobStore::erase_now(BlobKey key) {
  return wait_for<Status>([&](Done done) { erase(key, std::move(done)); });
}

Result<std::vector<Found>> BlobStore::list_now(BlobKind kind) {
  return wait_for<Result<std::vector<Found>>>([&](ListDone done) { list(kind, std::move(done)); });
}

}  // namespace triax::store
