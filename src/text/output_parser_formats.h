// The two parsers behind make_output_parser; nobody else needs them.
#pragma once

#include <memory>

#include "base/status.h"
#include "text/output_parser.h"

namespace triax::text {

Result<std::unique_ptr<OutputParser>> make_k3_parser(const Tokenizer& tokenizer,
                                                     OutputOptions options);
Result<std::unique_ptr<OutputParser>> make_k2_parser(const Tokenizer& tokenizer,
                                                     OutputOptions options);

/// The ids of special tokens, in the order of `names`.
Result<std::vector<int32_t>> control_ids(const Tokenizer& tokenizer,
                                         std::initializer_list<std::string_view> names);

}  // namespace triax::text
