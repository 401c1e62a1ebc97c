// JSON schemas as forms. README.md lists what is held, what narrows, what is refused.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/grammar/json_form.h"

namespace triax::text::internal {

using Json = nlohmann::ordered_json;

/// Reads one schema document.
/// Ownership  refers to all that it is given
class SchemaReader {
 public:
  /// `path` is what messages call the document ("$").
  SchemaReader(Forms& forms, JsonForms& json, const Json& document, std::string path)
      : forms_(forms), json_(json), document_(document), path_(std::move(path)) {}

  /// The form of the document's instances.
  /// Errors     kInvalidArgument "PATH.KEYWORD: what is wrong"; kResourceExhausted when references
  ///            and allOf multiply beyond a limit
  Result<FormId> read();

  /// A property of an object schema, for formats that write arguments one by one.
  struct Property {
    std::string name;
    bool required = false;
    Json schema;
    std::string path;
  };
  struct Object {
    std::vector<Property> properties;  // in their order
    bool open = false;                 // others may follow
  };
  /// The document as one object's properties.
  /// Errors     as read; kInvalidArgument when it is not a plain object schema
  Result<Object> read_object();

  /// Instances of `schema` that are of the JSON type `type`; never() when there are none.
  Result<FormId> read_typed(const Json& schema, std::string_view type, StringStyle style,
                            const std::string& path);

 private:
  struct Members {
    std::vector<Property> properties;
    bool open = false;
    Json extra = true;  // the schema of other properties
  };

  Result<FormId> read(const Json& schema, StringStyle style, const std::string& path, int depth);
  Result<FormId> read_reference(const std::string& reference, StringStyle style,
                                const std::string& path, int depth);
  Result<FormId> read_choice(const Json& schema, const char* keyword, StringStyle style,
                             const std::string& path, int depth);
  Result<FormId> read_type(const Json& schema, std::string_view type, StringStyle style,
                           const std::string& path, int depth);
  Result<FormId> read_enum(const Json& schema, StringStyle style, const std::string& path);
  Result<FormId> read_string(const Json& schema, StringStyle style, const std::string& path);
  Result<FormId> read_number(const Json& schema, bool integer, const std::string& path);
  Result<FormId> read_array(const Json& schema, const std::string& path, int depth);
  Result<FormId> read_object(const Json& schema, const std::string& path, int depth);
  Result<FormId> read_map(const Json& schema, const Members& members, const std::string& path,
                          int depth);
  Result<Members> members_of(const Json& schema, const std::string& path);
  Result<FormId> item_rule(const Json& schema, const std::string& path, int depth);

  /// `schema` without $ref and allOf at its top.
  Result<Json> flatten(const Json& schema, const std::string& path, int depth);
  Result<const Json*> find(const std::string& reference, const std::string& path) const;
  Result<Json> merge(const Json& a, const Json& b, const std::string& path);
  Status merge_keyword(Json& into, const std::string& key, const Json& value,
                       const std::string& path);
  Status merge_objects(Json& a, const Json& b, const std::string& path) const;

  Forms& forms_;
  JsonForms& json_;
  const Json& document_;
  std::string path_;
  std::map<std::pair<std::string, StringStyle>, RuleId> references_;
  int64_t work_ = 0;  // keywords copied and merged
};

/// Names a limit or bound: the integer of schema[key], absent when it is not there.
/// Errors     kInvalidArgument for anything but an integer from 0
Result<int64_t> count_of(const Json& schema, const char* key, int64_t fallback,
                         const std::string& path);

/// The regular expression of a string format, empty for one that is not known.
std::string_view format_pattern(std::string_view format);

}  // namespace triax::text::internal
