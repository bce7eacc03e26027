#pragma once

#include <vector>

#include "rannc/ir/operators.h"

// The table, in parts: operators of those families whose rules are in the file of that name in
// src/ir/rows/rules, without the traits that a family has. Other names are in other_names.cpp.
namespace rannc::ir::operators {

std::vector<Operator> pointwise();
std::vector<Operator> create();
std::vector<Operator> views();
std::vector<Operator> arrange();
std::vector<Operator> reduce();
std::vector<Operator> matmul();
std::vector<Operator> layers();
std::vector<Operator> losses();
std::vector<Operator> indexing();

struct OtherName {
  std::string_view name;
  std::string_view of;
};
std::vector<OtherName> other_names();

}  // namespace rannc::ir::operators
