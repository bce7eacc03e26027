#include "rannc/comm/sockets.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.h"
#include "rannc/util/error.h"

namespace rannc::comm {
namespace {

constexpr Purpose kTest{.what = "test"};

/// Runs `body` on each rank of a job over sockets, in a thread of its own.
void on_socket_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < ranks; ++rank) {
    listeners.push_back(std::make_unique<Listener>("127.0.0.1"));
    addresses.push_back("127.0.0.1:" + std::to_string(listeners.back()->port()));
  }
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm =
          make_sockets(*listeners[static_cast<size_t>(rank)], rank, addresses,
                       std::vector<std::string>(addresses.size(), "here"), "secret", 20, 20);
      body(*comm);
    });
  }
}

TEST(Sockets, AddUpOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_socket_ranks(ranks, [&](Communicator& comm) {
      for (const int64_t count : {0, 1, 5, 10'000, 3'000'000}) {
        std::vector<float> data(static_cast<size_t>(count), static_cast<float>(comm.rank() + 1));
        all_reduce_sum(comm, data.data(), count, Element::float32, all_of(comm), kTest);
        const auto expected = static_cast<float>(ranks * (ranks + 1) / 2);
        for (const float x : data) ASSERT_EQ(x, expected) << count << " numbers, " << ranks;
      }
      for (const int64_t each : {0, 1, 700'000}) {
        const int64_t count = each * ranks;
        std::vector<float> data(static_cast<size_t>(count), static_cast<float>(comm.rank() + 1));
        start_reduce_scatter_sum(comm, data.data(), count, Element::float32, all_of(comm), kTest)
            ->wait();
        for (int64_t i = 0; i < count; ++i) {
          if (i / std::max<int64_t>(each, 1) != comm.rank()) data[static_cast<size_t>(i)] = -1;
        }
        start_all_gather_shards(comm, data.data(), count, Element::float32, all_of(comm), kTest)
            ->wait();
        const auto expected = static_cast<float>(ranks * (ranks + 1) / 2);
        for (const float x : data) ASSERT_EQ(x, expected) << each << " numbers each, " << ranks;
      }
      const auto all = all_gather(comm, std::string(1, static_cast<char>('a' + comm.rank())),
                                  all_of(comm), kTest);
      ASSERT_EQ(static_cast<int>(all.size()), ranks);
      EXPECT_EQ(all.back(), std::string(1, static_cast<char>('a' + ranks - 1)));
      barrier(comm, all_of(comm), kTest);
    });
  }
}

// 100 bytes are sent at once, 1 MB when the receiver asks for it: both keep the order of their tag,
// whether the receive was posted before or after.
TEST(Sockets, MessagesWithEqualTagsArriveInTheOrderSent) {
  on_socket_ranks(2, [&](Communicator& comm) {
    constexpr std::array<size_t, 4> kSizes{100, 1'000'000, 100, 1'000'000};
    for (const bool late : {false, true}) {
      std::vector<std::string> data;
      std::vector<Handle> handles;
      for (size_t i = 0; i < kSizes.size(); ++i) {
        data.emplace_back(kSizes[i], static_cast<char>(comm.rank() == 0 ? 'a' + i : '?'));
      }
      if ((comm.rank() == 1) == late) barrier(comm, all_of(comm), kTest);
      for (std::string& each : data) {
        const auto bytes = static_cast<int64_t>(each.size());
        handles.push_back(comm.rank() == 0 ? comm.send(each.data(), bytes, 1, 7, kTest)
                                           : comm.receive(each.data(), bytes, 0, 7, kTest));
      }
      if ((comm.rank() == 1) != late) barrier(comm, all_of(comm), kTest);
      for (const Handle& handle : handles) handle->wait();
      for (size_t i = 0; i < data.size(); ++i) {
        EXPECT_EQ(data[i], std::string(kSizes[i], static_cast<char>('a' + i)));
      }
    }
  });
}

TEST(Sockets, ARankTalksToItself) {
  on_socket_ranks(2, [](Communicator& comm) {
    std::string sent(500'000, 'x');
    std::string received(500'000, '?');
    const Handle receive = comm.receive(received.data(), 500'000, comm.rank(), 3, kTest);
    comm.send(sent.data(), 500'000, comm.rank(), 3, kTest)->wait();
    receive->wait();
    EXPECT_EQ(received, sent);
  });
}

// The ring calls `then` from the thread that moves the messages, which posts the next one.
TEST(Sockets, SeveralSumsRunAtTheSameTime) {
  on_socket_ranks(3, [](Communicator& comm) {
    std::vector<std::vector<double>> data;
    for (const size_t count : {1, 300'001, 7, 50'000}) data.emplace_back(count, comm.rank() + 1.0);
    std::vector<Handle> handles;
    for (auto& each : data) {
      handles.push_back(start_all_reduce_sum(comm, each.data(), static_cast<int64_t>(each.size()),
                                             Element::float64, all_of(comm), kTest));
    }
    for (const Handle& handle : handles) handle->wait();
    for (const auto& each : data) {
      for (const double x : each) ASSERT_EQ(x, 6);
    }
  });
}

TEST(Sockets, NameWhoDoesNotCome) {
  Listener own("127.0.0.1");
  Listener other("127.0.0.1");
  const std::vector<std::string> addresses{"127.0.0.1:" + std::to_string(own.port()),
                                           "127.0.0.1:" + std::to_string(other.port())};
  try {
    const auto comm = make_sockets(own, 0, addresses, {"here", "here"}, "secret", 20, 0.1);
    FAIL() << "nobody has come";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 0 waited 0.1 s for the connection of the ranks 1");
  }
  EXPECT_THROW(
      (void)make_sockets(own, 1, {"nowhere", addresses[0]}, {"here", "here"}, "secret", 20, 1),
      CommError);
}

/// A connection to a listener of this host that says `words`, and stays.
int connected(const Listener& listener, const std::string& words) {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<uint16_t>(listener.port()));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(made, reinterpret_cast<sockaddr*>(&there), sizeof(there)), 0);
  EXPECT_EQ(write(made, words.data(), words.size()), static_cast<ssize_t>(words.size()));
  return made;
}

/// Files that this process may open, changed for a while.
class FileLimit {
 public:
  explicit FileLimit(int files) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit changed{.rlim_cur = static_cast<rlim_t>(files), .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &changed), 0);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

// One connection that said nothing, or ten bytes, kept the ranks from meeting until the time-out:
// greetings were read one after the other. A thousand took all files that a process may open, for
// two seconds.
TEST(Sockets, MeetBesideConnectionsThatSayNothing) {
  Listener own("127.0.0.1");
  Listener other("127.0.0.1");
  const std::vector<std::string> addresses{"127.0.0.1:" + std::to_string(own.port()),
                                           "127.0.0.1:" + std::to_string(other.port())};
  std::vector<int> strangers;
  for (const char* words : {"", "ten bytes!"}) {
    for (int i = 0; i < 500; ++i) strangers.push_back(connected(own, words));
  }
  const FileLimit few(strangers.back() + 400);
  const auto meet = [&](Listener& listener, int rank) {
    const auto comm = make_sockets(listener, rank, addresses, {"here", "here"}, "secret", 20,
                                   /*start_timeout_s=*/1.5);
    barrier(*comm, all_of(*comm), kTest);
  };
  {
    const std::jthread first([&] { meet(own, 0); });
    const std::jthread second([&] { meet(other, 1); });
  }
  for (const int stranger : strangers) close(stranger);
}

TEST(Sockets, ListenAtTheAddressThatTheyTellAlone) {
  const Listener own("127.0.0.1");
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<uint16_t>(own.port()));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  EXPECT_NE(connect(made, reinterpret_cast<sockaddr*>(&there), sizeof(there)), 0);
  close(made);
}

TEST(Sockets, TakeNobodyWithAnotherSecret) {
  Listener own("127.0.0.1");
  Listener other("127.0.0.1");
  const std::vector<std::string> addresses{"127.0.0.1:" + std::to_string(own.port()),
                                           "127.0.0.1:" + std::to_string(other.port())};
  const auto stranger = make_sockets(other, 1, addresses, {"here", "here"}, "secreT", 20, 20);
  EXPECT_THROW((void)make_sockets(own, 0, addresses, {"here", "here"}, "secret", 20, 0.1),
               CommError);
}

TEST(Sockets, MeetOverVersion6OfTheInternetProtocol) {
  Listener own("::1");
  Listener other("::1");
  const std::vector<std::string> addresses{"[::1]:" + std::to_string(own.port()),
                                           "[::1]:" + std::to_string(other.port())};
  const auto meet = [&](Listener& listener, int rank) {
    const auto comm = make_sockets(listener, rank, addresses, {"here", "here"}, "secret", 20, 20);
    barrier(*comm, all_of(*comm), kTest);
    EXPECT_EQ(comm->host(), "here");
  };
  const std::jthread first([&] { meet(own, 0); });
  const std::jthread second([&] { meet(other, 1); });
}

}  // namespace
}  // namespace rannc::comm
