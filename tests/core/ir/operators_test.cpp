#include "rannc/ir/operators.h"

#include <gtest/gtest.h>

namespace rannc::ir {
namespace {

TEST(Operators, AreNamedWithoutLibraryOverloadAndUnderscore) {
  EXPECT_EQ(base_name("aten::add_.Tensor"), "add");
  EXPECT_EQ(base_name("aten::_softmax"), "_softmax");
  EXPECT_EQ(base_name("aten::__and__.Tensor"), "__and__");
  EXPECT_EQ(base_name("add"), "add");
}

TEST(Operators, OfAnotherNameAreWhatTheFirstIs) {
  const Operator& divide = find_operator("true_divide");
  EXPECT_EQ(divide.other_name_of, "div");
  EXPECT_EQ(divide.family, OperatorFamily::divide);
  EXPECT_EQ(divide.traits, find_operator("div").traits);
  EXPECT_EQ(find_operator("concat").work, WorkClass::keeps_nothing);  // as of cat
}

TEST(Operators, HaveTheTraitsOfTheirFamilyAndTheirOwn) {
  const Trait dropout = find_operator("dropout").traits;
  EXPECT_TRUE(has(dropout, Trait::pointwise));
  EXPECT_TRUE(has(dropout, Trait::draws));
  EXPECT_FALSE(has(dropout, Trait::factory));
}

TEST(Operators, ThatAreNotThereHaveNothing) {
  const Operator& unknown = find_operator("no_such_operator");
  EXPECT_EQ(unknown.name, "");
  EXPECT_EQ(unknown.family, OperatorFamily::none);
  EXPECT_EQ(unknown.traits, Trait::none);
}

}  // namespace
}  // namespace rannc::ir
