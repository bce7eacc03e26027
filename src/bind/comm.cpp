#include <pybind11/stl.h>

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "bind/module.h"
#include "rannc/comm/agreement.h"
#include "rannc/comm/careless.h"
#include "rannc/comm/communicator.h"
#include "rannc/comm/hosts.h"
#include "rannc/comm/links.h"
#include "rannc/comm/local.h"
#include "rannc/comm/mpi.h"
#include "rannc/comm/nccl.h"
#include "rannc/comm/sockets.h"
#include "rannc/comm/subset.h"
#include "rannc/util/error.h"

namespace rannc::bind {
namespace {

using namespace py::literals;
using comm::Communicator;

constexpr comm::Purpose kScript{.what = "message of the script"};

/// The element type of a writable, contiguous buffer.
comm::Element element_of(const py::buffer_info& info) {
  const std::string format = info.format == "l" ? "q" : info.format;
  if (format == "f") return comm::Element::float32;
  if (format == "d") return comm::Element::float64;
  if (format == "q") return comm::Element::int64;
  if (format == "i") return comm::Element::int32;
  throw py::type_error("all_reduce_sum takes float32, float64, int32 or int64, not '" + format +
                       "'");
}

std::vector<int> all_ranks(const Communicator& self) {
  std::vector<int> ranks;
  for (int rank = 0; rank < self.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

py::buffer_info writable(const py::buffer& buffer) {
  py::buffer_info info = buffer.request(/*writable=*/true);
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0) {
    throw py::value_error("a buffer to communicate must be contiguous");
  }
  return info;
}

/// What a collective uses of Python's until it is over.
struct Used {
  py::buffer_info buffer;
  py::object communicator;
};

/// What is used no longer. The thread that moves the messages may be the last one to use it, and
/// must not wait for Python, which ends the threads that wait for it when it ends itself: so who
/// comes from Python next lets go of it. Nobody destroys the list.
struct UsedNoLonger {
  std::mutex mutex;
  std::vector<Used*> all;

  static UsedNoLonger& get() {
    static auto* const kept = new UsedNoLonger;
    return *kept;
  }
  void add(Used* used) {
    const std::scoped_lock lock(mutex);
    all.push_back(used);
  }
  void let_go() {
    std::vector<Used*> taken;
    {
      const std::scoped_lock lock(mutex);
      taken.swap(all);
    }
    for (const Used* used : taken) delete used;
  }
};

/// In place, of a writable, contiguous buffer, without waiting.
template <comm::Handle (*start)(Communicator&, void*, int64_t, comm::Element, std::span<const int>,
                                comm::Purpose, std::shared_ptr<void>, std::optional<int64_t>)>
comm::Handle start_collective(const py::object& communicator, const py::buffer& buffer,
                              const std::optional<std::vector<int>>& ranks) {
  UsedNoLonger::get().let_go();
  const std::shared_ptr<Used> used(new Used{writable(buffer), communicator},
                                   [](Used* last) { UsedNoLonger::get().add(last); });
  auto& self = communicator.cast<Communicator&>();
  const comm::Element element = element_of(used->buffer);
  const py::gil_scoped_release unlocked;
  return start(self, used->buffer.ptr, used->buffer.size, element, ranks.value_or(all_ranks(self)),
               kScript, used, {});
}

void all_reduce_sum(Communicator& self, const py::buffer& buffer,
                    const std::optional<std::vector<int>>& ranks) {
  const py::buffer_info info = writable(buffer);
  const comm::Element element = element_of(info);
  const py::gil_scoped_release unlocked;
  comm::all_reduce_sum(self, info.ptr, info.size, element, ranks.value_or(all_ranks(self)),
                       kScript);
}

void broadcast_into(Communicator& self, const py::buffer& buffer, int root,
                    const std::optional<std::vector<int>>& ranks) {
  const py::buffer_info info = writable(buffer);
  const py::gil_scoped_release unlocked;
  comm::broadcast_into(self, info.ptr, info.size * info.itemsize, root,
                       ranks.value_or(all_ranks(self)), kScript);
}

void send(Communicator& self, const std::string& data, int to, int64_t tag) {
  self.send(data.data(), static_cast<int64_t>(data.size()), to, tag, kScript)->wait();
}

std::string receive(Communicator& self, int64_t bytes, int from, int64_t tag) {
  std::string data(static_cast<size_t>(bytes), '\0');
  self.receive(data.data(), bytes, from, tag, kScript)->wait();
  return data;
}

py::list to_bytes(const std::vector<std::string>& strings) {
  py::list result;
  for (const std::string& string : strings) result.append(py::bytes(string));
  return result;
}

}  // namespace

void init_comm(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;

  py::class_<comm::Operation, comm::Handle>(m, "Operation")
      .def("done", &comm::Operation::done, Unlocked())
      .def("wait", &comm::Operation::wait, Unlocked());

  py::class_<comm::Stream, std::shared_ptr<comm::Stream>>(
      m, "Stream", "The work of a device, in the order in which it is done.")
      .def(
          "wait", [](comm::Stream& self, comm::Operation& operation) { self.wait(operation); },
          "operation"_a, Unlocked(),
          "What it is given from now on is done after the operation; the host goes on where it "
          "can.");
  py::class_<comm::LateStream, comm::Stream, std::shared_ptr<comm::LateStream>>(
      m, "LateStream", "Its work is done delay_s after it was given; for tests.")
      .def(py::init<double>(), "delay_s"_a)
      .def_property_readonly("recorded", &comm::LateStream::recorded)
      .def_property_readonly("waited", &comm::LateStream::waited);

  py::class_<Communicator, std::shared_ptr<Communicator>>(m, "Communicator")
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("host", &Communicator::host)
      .def_property("timeout_s", &Communicator::timeout_s, &Communicator::set_timeout_s)
      .def_property_readonly("left_messages", &Communicator::left_messages)
      .def("sent_bytes", &Communicator::sent_bytes, "what"_a,
           "Of messages that this rank has sent for a purpose.")
      .def("abort", &Communicator::abort, "reason"_a, Unlocked())
      .def("send", &send, "data"_a, "to"_a, "tag"_a = 0, Unlocked())
      .def(
          "receive",
          [](Communicator& self, int64_t bytes, int from, int64_t tag) {
            std::string data;
            {
              const py::gil_scoped_release unlocked;
              data = receive(self, bytes, from, tag);
            }
            return py::bytes(data);
          },
          "bytes"_a, "source"_a, "tag"_a = 0)
      .def("all_reduce_sum", &all_reduce_sum, "buffer"_a, "ranks"_a = py::none())
      .def("start_all_reduce_sum", &start_collective<&comm::start_all_reduce_sum>, "buffer"_a,
           "ranks"_a = py::none())
      .def("start_reduce_scatter_sum", &start_collective<&comm::start_reduce_scatter_sum>,
           "buffer"_a, "ranks"_a = py::none())
      .def("start_all_gather_shards", &start_collective<&comm::start_all_gather_shards>, "buffer"_a,
           "ranks"_a = py::none())
      .def("broadcast_into", &broadcast_into, "buffer"_a, "root"_a = 0, "ranks"_a = py::none())
      .def(
          "all_gather",
          [](Communicator& self, const std::string& data) {
            std::vector<std::string> all;
            {
              const py::gil_scoped_release unlocked;
              all = comm::all_gather(self, data, all_ranks(self), kScript);
            }
            return to_bytes(all);
          },
          "data"_a)
      .def(
          "agree",
          [](Communicator& self, int64_t own, int64_t kind, int64_t call, uint64_t capture) {
            comm::Agreement agreement =
                comm::agree(self, {.own = own, .kind = kind, .call = call, .capture = capture});
            return std::pair(std::move(agreement.own), agreement.is_same);
          },
          "own"_a, "kind"_a, "call"_a, "capture"_a, Unlocked())
      .def(
          "broadcast",
          [](Communicator& self, const std::string& data, int root) {
            std::string result;
            {
              const py::gil_scoped_release unlocked;
              result = comm::broadcast(self, data, root, all_ranks(self), kScript);
            }
            return py::bytes(result);
          },
          "data"_a, "root"_a = 0)
      .def(
          "barrier", [](Communicator& self) { comm::barrier(self, all_ranks(self), kScript); },
          Unlocked());

  py::enum_<comm::StreamMistake>(m, "StreamMistake", "To plant in tests.")
      .value("records_nothing", comm::StreamMistake::records_nothing)
      .value("waits_for_nothing", comm::StreamMistake::waits_for_nothing)
      .value("of_another_thread", comm::StreamMistake::of_another_thread);
  py::enum_<comm::MessageMistake>(m, "MessageMistake", "To plant in tests.")
      .value("forgets_sends", comm::MessageMistake::forgets_sends)
      .value("issues_elsewhere", comm::MessageMistake::issues_elsewhere);
  m.def("careless",
        py::overload_cast<std::shared_ptr<comm::Stream>, comm::StreamMistake>(&comm::careless),
        "stream"_a, "mistake"_a);
  m.def("careless",
        py::overload_cast<std::shared_ptr<Communicator>, comm::MessageMistake>(&comm::careless),
        "communicator"_a, "mistake"_a);

  py::class_<comm::LinkSpeed>(m, "LinkSpeed")
      .def_readonly("latency_ns", &comm::LinkSpeed::latency_ns)
      .def_readonly("bandwidth_bytes_per_s", &comm::LinkSpeed::bandwidth_bytes_per_s);
  py::class_<comm::LinkSpeeds>(m, "LinkSpeeds")
      .def_readonly("intra_host", &comm::LinkSpeeds::intra_host)
      .def_readonly("inter_host", &comm::LinkSpeeds::inter_host);
  m.def("measure_links", py::overload_cast<Communicator&>(&comm::measure_links), "comm"_a,
        Unlocked());

  m.def("subset", &comm::subset, "all"_a, "ranks"_a,
        "Some ranks of a communicator as one of their own, numbered by their order.");
  m.def(
      "make_local",
      [](int ranks, double timeout_s) {
        std::vector<std::shared_ptr<Communicator>> result;
        for (auto& one : comm::make_local(ranks, timeout_s)) result.push_back(std::move(one));
        return result;
      },
      "ranks"_a, "timeout_s"_a = 20.0);
  m.def("mpi_available", &comm::mpi_available);
  m.def("mpi_version", &comm::mpi_version);
  m.def(
      "make_mpi",
      [](double timeout_s, double start_timeout_s) -> std::shared_ptr<Communicator> {
        return comm::make_mpi(timeout_s, start_timeout_s);
      },
      "timeout_s"_a, "start_timeout_s"_a = 60.0, Unlocked());
  m.def("nccl_available", &comm::nccl_available);
  m.def("end_nccl", &comm::end_nccl, "communicator"_a, py::call_guard<py::gil_scoped_release>());
  m.def(
      "find_nccl",
      [](const std::string& file) {
        const comm::NcclLibrary found = comm::find_nccl(file);
        return std::pair(found.file, found.version);
      },
      "file"_a = "", "File and version (23004 is 2.30.4) of the NCCL that would be used.");
  m.def("nccl_version_text", &comm::nccl_version_text, "version"_a);
  py::class_<comm::Host>(m, "Host", "The host of a rank, as it says.")
      .def(py::init<std::string, std::string>(), "name"_a, "identity"_a)
      .def_readonly("name", &comm::Host::name)
      .def_readonly("identity", &comm::Host::identity);
  m.def("own_host", &comm::own_host);
  m.def("distinct_names", &comm::distinct_names, "hosts"_a,
        "Names of the ranks' hosts, with a number where two hosts have the same one.");
  py::class_<comm::Listener>(m, "Listener", "A port on which other ranks find this one.")
      .def(py::init<const std::string&>(), "address"_a)
      .def_property_readonly("port", &comm::Listener::port);
  m.def(
      "make_sockets",
      [](comm::Listener& listener, int rank, const std::vector<std::string>& addresses,
         const std::vector<std::string>& hosts, const std::string& secret, double timeout_s,
         double start_timeout_s) -> std::shared_ptr<Communicator> {
        return comm::make_sockets(listener, rank, addresses, hosts, secret, timeout_s,
                                  start_timeout_s);
      },
      "listener"_a, "rank"_a, "addresses"_a, "hosts"_a, "secret"_a, "timeout_s"_a,
      "start_timeout_s"_a, Unlocked());
  m.def("finish_sockets", &comm::finish_sockets, Unlocked());
  m.def("started_mpi", &comm::started_mpi);
  m.def("finish_mpi", &comm::finish_mpi, Unlocked());
}

}  // namespace rannc::bind
