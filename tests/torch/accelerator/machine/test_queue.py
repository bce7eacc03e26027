"""Streams are orders of their own; only events make one wait for another."""

import standin
import torch


def test_a_stream_that_does_not_wait_sees_what_was_there_before():
    x = torch.zeros(2, device="standin")
    standin.synchronize()
    side = standin.Stream()
    with standin.held():
        x.fill_(7)
        with side:
            y = x + 1
        side.synchronize()
    standin.synchronize()
    assert y.tolist() == [1, 1]


def test_a_stream_that_waits_for_an_event_sees_what_was_written_before_it():
    x = torch.zeros(2, device="standin")
    side = standin.Stream()
    with standin.held():
        x.fill_(7)
        event = standin.Event()
        event.record()
        x.record_stream(side)
        side.wait_event(event)
        with side:
            y = x + 1
        assert not event.query()
    standin.synchronize()
    assert event.query()
    assert y.tolist() == [8, 8]


def test_an_event_that_is_recorded_again_is_the_later_one():
    event, side = standin.Event(), standin.Stream()
    event.record()
    with standin.held():
        event.record()
        side.wait_event(event)
        assert not event.query()
        assert not side.query()
    event.synchronize()
    side.synchronize()
    assert side.query()


def test_events_say_how_long_the_device_took():
    before, after = standin.Event(enable_timing=True), standin.Event(enable_timing=True)
    standin.set_delay(0)
    standin.slow_links(latency_us=20_000)
    before.record()
    torch.ones(2).pin_memory().to("standin", non_blocking=True)
    after.record()
    after.synchronize()
    assert before.elapsed_time(after) >= 20


def test_streams_of_either_priority_are_others_and_have_handles():
    streams = [standin.Stream(), standin.Stream(), standin.Stream(priority=-1)]
    handles = {stream.native_handle for stream in [standin.current_stream(), *streams]}
    assert len(handles) == 4
    assert len({stream.stream_id for stream in streams}) == 3


def test_the_current_stream_is_the_blocks():
    side = standin.Stream()
    with side:
        assert standin.current_stream() == side
        x = torch.ones(1, device="standin")
    assert standin.current_stream() != side
    counts = standin.issues()
    assert counts[("main", f"standin0.{side.stream_id}")] == 1
    assert x.is_standin
