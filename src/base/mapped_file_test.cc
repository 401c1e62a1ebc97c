// Mapped files: contents, lifetime, and each way in which opening fails.
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace triax {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() {
    char name[] = "/tmp/triax_mapped_file_XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  static std::string text(const MappedFile& file) {
    std::string s(file.bytes().size(), '\0');
    if (!s.empty()) {
      std::memcpy(s.data(), file.bytes().data(), s.size());
    }
    return s;
  }

  std::filesystem::path folder_;
};

TEST_F(MappedFileTest, ShowsTheBytesOfTheFile) {
  const std::string content = std::string("a\0b", 3) + std::string(10000, 'x');
  Result<MappedFile> file = MappedFile::open(write("f", content));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(text(*file), content);
  EXPECT_EQ(file->path(), (folder_ / "f").string());
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) {
  Result<MappedFile> file = MappedFile::open(write("empty", ""));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, OutlivesItsNameAndMoves) {
  const std::string path = write("f", "still here");
  Result<MappedFile> opened = MappedFile::open(path);
  ASSERT_TRUE(opened.ok());
  std::filesystem::remove(path);
  MappedFile first = *std::move(opened);
  MappedFile second = std::move(first);
  EXPECT_EQ(text(second), "still here");
  MappedFile third;
  third = std::move(second);
  EXPECT_EQ(text(third), "still here");
}

TEST_F(MappedFileTest, AMissingFileIsNotFoundAndNamed) {
  const Result<MappedFile> file = MappedFile::open((folder_ / "absent").string());
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
  EXPECT_NE(file.status().message().find((folder_ / "absent").string()), std::string::npos);
}

TEST_F(MappedFileTest, AFolderIsNoFile) {
  const Result<MappedFile> file = MappedFile::open(folder_.string());
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(file.status().message().find("not a regular file"), std::string::npos);
}

TEST_F(MappedFileTest, APipeIsRefusedWithoutWaitingForAWriter) {
  const std::string path = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Result<MappedFile> file = MappedFile::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(MappedFileTest, AFileThatMayNotBeReadSaysWhy) {
  const std::string path = write("secret", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  if (::access(path.c_str(), R_OK) == 0) {
    GTEST_SKIP() << "this user may read every file";
  }
  const Result<MappedFile> file = MappedFile::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kInternal);
  EXPECT_NE(file.status().message().find("cannot open"), std::string::npos);
}

}  // namespace
}  // namespace triax
