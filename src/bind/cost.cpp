#include "bind/module.h"

namespace rannc::bind {

void init_cost(py::module_&) {}

}  // namespace rannc::bind
