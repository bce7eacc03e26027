#include "bind/module.h"

namespace rannc::bind {

void init_partition(py::module_&) {}

}  // namespace rannc::bind
