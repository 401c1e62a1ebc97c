// triax cache: what the folder of an SSD tier or a Redis server holds, whether it is sound, and
// removing from it.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "app/app.h"
#include "app/redis_cache.h"
#include "store/ssd_scan.h"
#include "store/ssd_store.h"

namespace triax::app {
namespace {

using store::BlobKey;
using store::BlobKind;
using store::Boundary;
using store::FolderScan;
using store::ScannedFile;

struct Flags {
  std::string folder;
  RedisFlags redis;  // instead of the folder
  bool json = false;
  bool all = false;
  std::vector<std::string> keys;
};

// What a scan says about the whole.
struct Overview {
  std::vector<const ScannedFile*> boundaries;  // all parts are there
  std::vector<const ScannedFile*> incomplete;  // a part is not
  int64_t blobs = 0, blob_bytes = 0;
  int64_t loose = 0, loose_bytes = 0;  // blobs that no boundary needs
  int64_t file_bytes = 0;
};

Overview overview_of(const FolderScan& scan) {
  Overview overview;
  std::set<BlobKey> there, needed;
  for (const ScannedFile& file : scan.files) {
    there.insert(file.header.blob.key);
    overview.file_bytes += file.file_bytes;
  }
  for (const ScannedFile& file : scan.files) {
    if (!file.boundary) {
      continue;
    }
    const std::vector<store::BlobRef>& parts = file.boundary->parts;
    const bool whole = std::all_of(parts.begin(), parts.end(), [&](const store::BlobRef& part) {
      return there.contains(part.key);
    });
    (whole ? overview.boundaries : overview.incomplete).push_back(&file);
    for (const store::BlobRef& part : parts) {
      needed.insert(part.key);
    }
  }
  for (const ScannedFile& file : scan.files) {
    if (file.boundary) {
      continue;
    }
    ++overview.blobs;
    overview.blob_bytes += file.header.blob.bytes;
    if (!needed.contains(file.header.blob.key)) {
      ++overview.loose;
      overview.loose_bytes += file.header.blob.bytes;
    }
  }
  return overview;
}

nlohmann::json json_of(const FolderScan& scan, const Overview& overview) {
  nlohmann::json boundaries = nlohmann::json::array();
  for (const ScannedFile* file : overview.boundaries) {
    boundaries.push_back({{"key", to_string(file->header.blob.key)},
                          {"parts", file->boundary->parts.size()},
                          {"bytes", total_bytes(*file->boundary)},
                          {"note_bytes", file->boundary->note.size()},
                          {"written_ms", file->modified_ns / 1'000'000},
                          {"expires_ms", file->header.expires_ms}});
  }
  nlohmann::json torn = nlohmann::json::array();
  for (const store::TornFile& file : scan.torn) {
    torn.push_back({{"name", file.name}, {"why", file.why}});
  }
  return {
      {"boundaries", boundaries},          {"incomplete_boundaries", overview.incomplete.size()},
      {"blobs", overview.blobs},           {"blob_bytes", overview.blob_bytes},
      {"loose_blobs", overview.loose},     {"loose_bytes", overview.loose_bytes},
      {"file_bytes", overview.file_bytes}, {"torn", torn},
      {"foreign_files", scan.foreign}};
}

void print_summary(const FolderScan& scan, const Overview& overview) {
  fmt::print("{} boundaries, {} blobs of {} ({} loose, {}), {} on disk\n",
             overview.boundaries.size(), overview.blobs,
             human_bytes(static_cast<double>(overview.blob_bytes)), overview.loose,
             human_bytes(static_cast<double>(overview.loose_bytes)),
             human_bytes(static_cast<double>(overview.file_bytes)));
  for (const ScannedFile* file : overview.incomplete) {
    fmt::print("incomplete  {}\n", to_string(file->header.blob.key));
  }
  for (const store::TornFile& file : scan.torn) {
    fmt::print("torn        {}: {}\n", file.name, file.why);
  }
  for (const std::string& name : scan.foreign) {
    fmt::print("foreign     {}\n", name);
  }
}

std::string minutes(int64_t ms) { return fmt::format("{:.1f} min", static_cast<double>(ms) / 6e4); }

int run_ls(const Flags& flags) {
  if (!flags.redis.address.empty()) {
    return list_redis(flags.redis, flags.json);
  }
  const Result<FolderScan> scan = scan_folder(flags.folder, store::ScanDepth::kHeaders);
  if (!scan.ok()) {
    return fail(scan.status());
  }
  const Overview overview = overview_of(*scan);
  if (flags.json) {
    fmt::print("{}\n", json_of(*scan, overview).dump(2));
    return kExitOk;
  }
  const int64_t now = store::system_clock_ms()();
  if (!overview.boundaries.empty()) {
    fmt::print("{:<42} {:>7} {:>10} {:>12} {:>12}\n", "boundary", "parts", "bytes", "written",
               "expires");
  }
  for (const ScannedFile* file : overview.boundaries) {
    const int64_t expires = file->header.expires_ms;
    fmt::print("{:<42} {:>7} {:>10} {:>12} {:>12}\n", to_string(file->header.blob.key),
               file->boundary->parts.size(),
               human_bytes(static_cast<double>(total_bytes(*file->boundary))),
               minutes(now - file->modified_ns / 1'000'000) + " ago",
               expires == 0 ? "never" : "in " + minutes(expires - now));
  }
  print_summary(*scan, overview);
  return kExitOk;
}

int run_verify(const Flags& flags) {
  if (!flags.redis.address.empty()) {
    return verify_redis(flags.redis, flags.json);
  }
  const Result<FolderScan> scan = scan_folder(flags.folder, store::ScanDepth::kPayloads);
  if (!scan.ok()) {
    return fail(scan.status());
  }
  const Overview overview = overview_of(*scan);
  const bool sound = scan->torn.empty() && overview.incomplete.empty();
  if (flags.json) {
    nlohmann::json json = json_of(*scan, overview);
    json["sound"] = sound;
    fmt::print("{}\n", json.dump(2));
  } else {
    print_summary(*scan, overview);
    fmt::print("{}\n", sound ? "sound: every byte agrees with its checksum"
                             : "damaged: a store that is opened here drops what is torn");
  }
  return sound ? kExitOk : kExitFailed;
}

int run_rm(const Flags& flags) {
  if (!flags.redis.address.empty()) {
    return remove_from_redis(flags.redis, flags.keys, flags.all, flags.json);
  }
  if (Status status = store::check_format(flags.folder); !status.ok()) {
    return fail(status);
  }
  std::vector<BlobKey> keys;
  for (const std::string& text : flags.keys) {
    const Result<BlobKey> key = store::parse_key(text);
    if (!key.ok()) {
      return fail(key.status());
    }
    keys.push_back(*key);
  }
  Result<std::unique_ptr<store::SsdStore>> opened =
      store::SsdStore::open({.folder = flags.folder,
                             .budget_bytes = std::numeric_limits<int64_t>::max() / 2,
                             .workers = 1});
  if (!opened.ok()) {
    return fail(opened.status());
  }
  store::SsdStore& tier = **opened;
  const int64_t before = tier.stats().bytes_used;
  if (flags.all) {
    for (const BlobKind kind : {BlobKind::kBoundary, BlobKind::kPage, BlobKind::kConv,
                                BlobKind::kState, BlobKind::kOther}) {
      const Result<std::vector<store::Found>> found = tier.list_now(kind);
      for (size_t i = 0; found.ok() && i < found->size(); ++i) {
        keys.push_back((*found)[i].blob.key);
      }
    }
  }
  int64_t missing = 0;
  for (const BlobKey& key : keys) {
    if (!flags.all && !tier.contains_now(key)) {
      fmt::print(stderr, "triax: {} is not in {}\n", to_string(key), flags.folder);
      ++missing;
    }
    if (Status status = tier.erase_now(key); !status.ok()) {
      return fail(status);
    }
  }
  const int64_t freed = before - tier.stats().bytes_used;
  if (flags.json) {
    fmt::print("{}\n", nlohmann::json({{"freed_bytes", freed}, {"missing", missing}}).dump());
  } else {
    fmt::print("{} freed\n", human_bytes(static_cast<double>(freed)));
  }
  return missing == 0 ? kExitOk : kExitFailed;
}

/// With --redis the first word is no folder but a key.
const Flags& placed(Flags& flags) {
  if (flags.redis.address.empty() && flags.folder.empty()) {
    throw CLI::RequiredError("a folder, or --redis");
  }
  if (!flags.redis.address.empty() && !flags.folder.empty()) {
    flags.keys.insert(flags.keys.begin(), std::exchange(flags.folder, {}));
  }
  return flags;
}

}  // namespace

void add_cache(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "cache", "look at, verify or empty what a cache keeps on an SSD or in Redis");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n  triax cache ls /var/cache/triax\n  triax cache verify /var/cache/triax --json\n"
      "  triax cache rm /var/cache/triax --all\n"
      "  triax cache ls --redis 127.0.0.1:6379");
  const auto add = [&](const char* name, const char* what, int (*run)(const Flags&)) {
    auto flags = std::make_shared<Flags>();
    CLI::App* sub = command->add_subcommand(name, what);
    sub->add_option("folder", flags->folder, "the folder of the SSD tier");
    flags->redis.add_to(*sub);
    sub->add_flag("--json", flags->json, "print JSON");
    sub->callback([flags, exit_code, run] { *exit_code = run(placed(*flags)); });
    return std::pair(sub, flags);
  };
  add("ls", "boundaries, their sizes and ages; works beside a running process", run_ls)
      .first->footer("Example:\n  triax cache ls /var/cache/triax");
  add("verify", "read every byte; exit code 1 when something is damaged", run_verify)
      .first->footer("Example:\n  triax cache verify /var/cache/triax --json");
  const auto [rm, flags] =
      add("rm", "remove boundaries or blobs; not while another process uses the folder", run_rm);
  CLI::Option* keys = rm->add_option("keys", flags->keys, "what to remove, as `ls` names it");
  CLI::Option* all = rm->add_flag("--all", flags->all, "remove everything");
  keys->excludes(all);
  rm->callback([rm_flags = flags, exit_code] {
    placed(*rm_flags);
    if (rm_flags->keys.empty() && !rm_flags->all) {
      throw CLI::RequiredError("keys or --all");
    }
    *exit_code = run_rm(*rm_flags);
  });
  rm->footer("Example:\n  triax cache rm /var/cache/triax --all");
}

}  // namespace triax::app
