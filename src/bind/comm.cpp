#include "bind/module.h"

namespace rannc::bind {

void init_comm(py::module_&) {}

}  // namespace rannc::bind
