#include "bind/module.h"

namespace rannc::bind {

void init_plan(py::module_&) {}

}  // namespace rannc::bind
