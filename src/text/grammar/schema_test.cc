// Which texts a schema takes and which it refuses; what is said of schemas that cannot be held.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/grammar/grammar_testing.h"

namespace triax::text {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> valid;
  std::vector<const char*> invalid;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {R"({"type":"integer","minimum":-12,"maximum":305})",
       {"0", "-12", "-1", "7", "99", "100", "305", "300", "299"},
       {"-13", "306", "310", "1000", "01", "-0", "1.0", "", "-", "+1"}},
      {R"({"type":"integer","exclusiveMinimum":0,"multipleOf":7})",
       {"7", "14", "700", "7777777777777777"},
       {"0", "-7", "8", "701"}},
      {R"({"type":"integer","minimum":-50,"maximum":-7})",
       {"-7", "-8", "-50", "-10"},
       {"-6", "-51", "7", "0"}},
      {R"({"type":"integer","minimum":10})",
       {"10", "11", "99", "100", "12345678901234567890"},
       {"9", "1", "0", "-10"}},
      {R"({"type":"integer","maximum":10})",
       {"10", "9", "0", "-1", "-999999999999999999"},
       {"11", "20", "100"}},
      {R"({"type":"number","minimum":0,"maximum":1})",
       {"0", "1", "0.5", "1.0", "1.000", "0.001"},
       {"1.1", "1.001", "-0.1", "2", "-1"}},
      {R"({"type":"number","exclusiveMinimum":-2,"exclusiveMaximum":3})",
       {"-1.99", "0", "2.999", "-1", "-0.5", "1.5", "0.0"},
       {"-2", "-2.0", "3", "3.0", "3.1", "-3"}},
      {R"({"type":"number"})",
       {"0", "-1.5", "1e5", "2.5E-10", "1e+3", "12345.678"},
       {"01", ".5", "1.", "e5", "--1"}},
      {R"({"type":"string","minLength":1,"maxLength":3})",
       {R"("a")", R"("abc")", R"("\n\"")", "\"\xe4\xba\xba\xf0\x9f\x98\x80!\"",
        R"("\ud83d\ude00ab")"},
       {R"("")", R"("abcd")", R"("\ud83d")", R"("\x")", "\"\n\"", "\"\xff\"", "abc"}},
      {R"({"type":"string","pattern":"^a+\"b$"})",
       {R"("a\"b")", R"("aaa\"b")"},
       {R"("a"b")", R"("\"b")", R"("a\"bc")"}},
      {R"({"type":"string","pattern":"ab|^c"})",
       {R"("xxabyy")", R"("cyy")", R"("ab")"},
       {R"("xc")", R"("")", R"("ba")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("1999-12-31")", R"("2000-02-29")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-13-01")", R"("2024-04-31")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-01-01T23:59:59Z")", R"("2024-01-01T00:00:00.5+02:00")"},
       {R"("2024-01-01")", R"("2024-01-01T24:00:00Z")"}},
      {R"({"type":"string","format":"ipv4"})",
       {R"("0.0.0.0")", R"("255.249.199.99")"},
       {R"("256.1.1.1")", R"("1.1.1")", R"("01.1.1.1")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567e89b12d3a456426614174000")"}},
      {R"({"type":"string","format":"email"})",
       {R"("a.b@example.org")"},
       {R"("a@b@c")", R"("@x")"}},
      {R"({"enum":["a",1,null,{"k":[true,"x"]}]})",
       {R"("a")", "1", "null", R"({"k": [true, "x"]})"},
       {R"("b")", "2", R"({"k":[]})"}},
      {R"({"const":"\u00e9\n"})", {"\"\xc3\xa9\\n\""}, {R"("e")"}},
      {R"({"type":["string","null"],"enum":["a",1,null]})", {R"("a")", "null"}, {"1"}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2})",
       {"[true]", "[true,false]", "[ true , false ]"},
       {"[]", "[true,true,true]", "[1]", "[true,]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":{"type":"integer"},
           "minItems":1,"maxItems":3})",
       {"[null]", "[null,true]", "[null,true,5]"},
       {"[]", "[true]", "[null,5]", "[null,true,5,6]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})",
       {"[]", "[null]"},
       {"[null,null]"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},
           "required":["b"]})",
       {R"({"b":null})", R"({"a":null,"b":null})", R"({"b":null,"c":null})",
        "{\n  \"a\": null,\n  \"b\": null,\n  \"c\": null\n}"},
       {"{}", R"({"a":null})", R"({"b":null,"a":null})", R"({"b":null,"x":1})", R"({"b":null,})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}}})",
       {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {R"({"c":null})", "{,}"}},
      {R"({"type":"object","properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {"{}", R"({"ab":null})", R"({"ab":null,"a":1})", R"({"a":1,"abc":2})", R"({"":1})"},
       {R"({"ab":1})", R"({"a":null})", R"({"ab":null,"ab":1})", R"({"ab":null,"\u0061b":1})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2,
           "propertyNames":{"pattern":"^[a-z]$"}})",
       {R"({"a":1})", R"({"a":1,"b":2})"},
       {"{}", R"({"ab":1})", R"({"a":1,"b":2,"c":3})"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},
           "next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],
           "additionalProperties":false}},"$ref":"#/$defs/n"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})", R"({"v":1,"next":{}})"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},
           {"properties":{"a":{"maximum":5},"b":{"type":"null"}}}]})",
       {R"({"a":3})", R"({"a":5,"b":null})"},
       {R"({"a":6})", R"({"a":2})", R"({"b":null})"}},
      {R"({"type":"object","properties":{"k":{"type":"string"}},"required":["k"],
           "anyOf":[{"properties":{"k":{"const":"x"},"v":{"type":"integer"}},"required":["v"]},
                    {"properties":{"k":{"const":"y"}}}]})",
       {R"({"k":"x","v":1})", R"({"k":"y"})"},
       {R"({"k":"x"})", R"({"k":"z"})", R"({"k":"y","v":1})"}},
      {R"({})", {"1", "null", R"({"a":[1,{"b":"c"}]})", "[]", R"("x")"}, {"", "nul", "[1,]"}},
      {R"({"properties":{"a":{"type":"null"}}})", {"{}"}, {"1", "[]"}},
  };
  return list;
}

TEST(Schema, TakesTheValidAndRefusesTheInvalid) {
  ConstraintRig rig(test_tokenizer());
  for (const Case& c : cases()) {
    const SharedConstraint constraint = rig.compile(Kind::kJsonSchema, c.schema);
    for (const char* text : c.valid) {
      EXPECT_TRUE(matches(rig.tokenizer, constraint, text)) << c.schema << " " << text;
    }
    for (const char* text : c.invalid) {
      EXPECT_FALSE(matches(rig.tokenizer, constraint, text)) << c.schema << " " << text;
    }
  }
}

TEST(Schema, WhatCannotBeHeldIsNamedWithItsPath) {
  ConstraintRig rig(test_tokenizer());
  const std::pair<const char*, const char*> list[] = {
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "$.properties.a.not: "},
      {R"({"if":{}})", "$.if: "},
      {R"({"patternProperties":{}})", "$.patternProperties: "},
      {R"({"type":"array","uniqueItems":true})", "$.uniqueItems: "},
      {R"({"type":"array","contains":{}})", "$.contains: "},
      {R"({"type":"number","multipleOf":0.01})", "$.multipleOf: "},
      {R"({"type":"number","minimum":0.5})", "$.minimum: "},
      {R"({"type":"string","format":"color"})", "$.format: "},
      {R"({"type":"string","pattern":"a","minLength":2})", "$.pattern: "},
      {R"x({"type":"string","pattern":"(?=a)"})x", "$.pattern: 3: look-around"},
      {R"({"type":"string","pattern":"(a"})", "$.pattern: 2: '(' without ')'"},
      {R"({"type":"text"})", "$.type: "},
      {R"({"$ref":"http://x/y"})", "$.$ref: "},
      {R"({"$ref":"#/$defs/x"})", "$.$ref: '#/$defs/x' is not there"},
      {R"({"anyOf":[]})", "$.anyOf: "},
      {R"({"items":{"anyOf":[{"type":"null"},{"dependentSchemas":{}}]}})",
       "$.items.anyOf[1].dependentSchemas: "},
      {R"({"type":"string","minLength":-1})", "$.minLength: "},
      {R"({"properties":{"a":{}},"required":["b"],"additionalProperties":false})", "$.required: "},
      {R"({"properties":{"a":{}},"minProperties":1})", "$.minProperties: "},
      {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
       "$.allOf[1].additionalProperties: "},
      {R"({"$ref":"#"})", "$: nothing has this form"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "$: nothing has this form"},
      {R"({"enum":[]})", "$: nothing has this form"},
      {R"(false)", "$: nothing has this form"},
      {R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "$: nothing has this form"},
      {R"({"type": )", "$: "},
      {R"([])", "$: "},
  };
  for (const auto& [schema, message] : list) {
    EXPECT_NE(rig.error(Kind::kJsonSchema, schema).find(message), std::string::npos)
        << schema << " says: " << rig.error(Kind::kJsonSchema, schema);
  }
}

TEST(Schema, HostileSchemasEndWithAnErrorInLittleTime) {
  ConstraintRig rig(test_tokenizer());
  const auto error = [&](const std::string& schema) {
    return rig.error(Kind::kJsonSchema, schema);
  };
  std::string deep;
  for (int i = 0; i < 5000; ++i) {
    deep += R"({"items":)";
  }
  EXPECT_NE(error(deep + "{}" + std::string(5000, '}')), "");
  std::string doubling = R"({"$defs":{"d0":{"type":"null"})";
  for (int i = 1; i < 26; ++i) {
    const std::string previous = "{\"$ref\":\"#/$defs/d" + std::to_string(i - 1) + "\"}";
    doubling += ",\"d" + std::to_string(i) + "\":{\"allOf\":[" + previous + "," + previous + "]}";
  }
  EXPECT_NE(error(doubling + R"(},"$ref":"#/$defs/d25"})").find("multiply"), std::string::npos);
  std::string wide = R"({"properties":{)";
  for (int i = 0; i < 1000; ++i) {
    wide += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":{}";
  }
  wide += R"(},"anyOf":[)";
  for (int i = 0; i < 1000; ++i) {
    wide += (i > 0 ? R"(,{"required":["p)" : R"({"required":["p)") + std::to_string(i) + "\"]}";
  }
  EXPECT_NE(error(wide + "]}").find("more than"), std::string::npos);
  EXPECT_NE(error(R"({"type":"string","maxLength":100000000})").find("states"), std::string::npos);
  EXPECT_NE(error(R"({"type":"string","pattern":"^((a{1,900}){1,900}){1,900}$"})").find("states"),
            std::string::npos);
  EXPECT_NE(error("{\"description\":\"" + std::string(1 << 20, 'x') + "\"}").find("bytes"),
            std::string::npos);
  EXPECT_NE(error(R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})"), "");
  EXPECT_NE(error(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})").find("refers to itself"),
            std::string::npos);
}

TEST(Schema, ManyPropertiesAndDoublingReferencesStaySmall) {
  ConstraintRig rig(test_tokenizer());
  std::string many = R"({"type":"object","additionalProperties":true,"properties":{)";
  for (int i = 0; i < 500; ++i) {
    many += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"type":"integer"})";
  }
  const SharedConstraint constraint = rig.compile(Kind::kJsonSchema, many + "}}");
  EXPECT_TRUE(matches(rig.tokenizer, constraint, R"({"p3":1,"p499":2,"p500":"x"})"));
  EXPECT_FALSE(matches(rig.tokenizer, constraint, R"({"p499":2,"p3":1})"));
  std::string doubling = R"({"$defs":{"d0":{"type":"null"})";
  for (int i = 1; i < 60; ++i) {
    const std::string previous = "{\"$ref\":\"#/$defs/d" + std::to_string(i - 1) + "\"}";
    doubling += ",\"d" + std::to_string(i) + "\":{\"type\":\"array\",\"prefixItems\":[" + previous +
                "," + previous + "]}";
  }
  rig.compile(Kind::kJsonSchema, doubling + R"(},"$ref":"#/$defs/d59"})");
}

TEST(Schema, RandomOutputOfJsonObjectIsJson) {
  ConstraintRig rig(test_tokenizer());
  const SharedConstraint constraint = rig.compile(Kind::kJsonObject, "");
  Rng rng(3);
  int whole = 0;
  for (int i = 0; i < 200; ++i) {
    ConstraintState state(constraint);
    std::vector<int32_t> ids;
    if (random_walk(state, rig, rng, 40, 2000, ids)) {
      ++whole;
      EXPECT_TRUE(nlohmann::json::accept(rig.tokenizer.decode(ids))) << rig.tokenizer.decode(ids);
    }
  }
  EXPECT_GT(whole, 100);
}

}  // namespace
}  // namespace triax::text
