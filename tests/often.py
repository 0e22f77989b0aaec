"""Which cases of the long proofs `make test` runs; `make test-slow` runs them all.

A proof over all methods, pairs or models takes minutes, mostly of compiling. Of each of these some
cases stay, at least one of every way through the code; those named here, by how their names in
brackets begin, and () is none. The others are marked `slow`.
"""

OFTEN = {
    "analysis/test_moments.py::test_intervals_cover_as_often_as_they_say": (),
    "analysis/test_report.py::test_more_runs_make_no_larger_page": (),
    "analysis/test_race.py::test_a_known_law_is_recognised_and_its_variation_covered": (
        *("exponential", "lognormal-0.3"),
    ),
    "benchmarks/test_accelerator.py::test_operations_of_the_transformer_are_the_usual_estimate": (),
    "data/test_augment.py::test_devices_share_an_augmented_batch": (),
    "launch/test_disk_full.py::test_a_run_says_one_line_and_goes_on": (
        *("event file", "log", "third checkpoint", "summary"),
    ),
    "launch/test_sweep.py::test_every_point_is_as_it_is_alone": ("5",),
    "launch/test_tune.py::test_killed_again_and_again_it_decides_the_same": ("attempt",),
    "launch/test_sweep_long.py::test_killed_and_resumed_is_whole": (),
    "models/test_convolution.py::test_transforms_of_replicas_end": ("2",),
    "models/test_remat.py::test_blocks_keep_their_inputs_only": ("transformer",),
    "models/test_remat.py::test_is_the_same_function_with_the_same_parameters": (
        *("resmlp", "transformer"),
    ),
    "optimizers/test_delayed.py::test_a_tiny_modern_transformer_learns_under_delay": (),
    "optimizers/test_delayed.py::test_is_optax_on_gradients_one_update_old": (),
    "outputs/test_going_on.py::test_a_finished_run_goes_on_to_the_same_floats": (
        *("meter", "closed"),
    ),
    "outputs/test_going_on.py::test_a_run_starts_from_anothers_parameters": ("sync",),
    "own/test_kinds.py::test_real_devices_and_streams_carry_every_kind": (),
    "own/test_resumed.py::test_the_command": (),
    "parallel/test_never_flushed.py::test_a_state_is_its_rows_to_the_bit": ("stash", "2bw"),
    "papers/test_methods.py::test_greedy_updates_follow_each_other_at_their_longest_stage": (),
    "papers/test_race.py::test_every_arm_can_run_on_every_network": ("mlp", "text"),
    "papers/test_race.py::test_the_all_reduce_takes_its_share_of_an_update": ("1 ",),
    "papers/test_stale_samples.py::test_of_ones_own_samples_every_kind_is_the_policy_gradient": (
        *("late", "clipped"),
    ),
    "racing/test_race.py::test_a_merged_server_races_too": ("metered", "one group"),
    "racing/test_race.py::test_a_server_in_parts_makes_the_same_updates": ("own0",),
    "racing/test_race.py::test_local_gradients_race_too": ("values1",),
    "racing/test_race.py::test_the_simulator_replays_it": (
        *("metered", "k_sync", "adam", "ringmaster"),
    ),
    "racing/test_race.py::test_it_goes_on_where_it_was_saved": (
        *("plain", "too old", "k_sync", "local steps", "elastic"),
    ),
    "racing/test_race.py::test_it_waits_where_nobody_arrives": (
        *("plain", "k_sync", "local steps", "elastic"),
    ),
    "strategies/test_battery.py::test_a_run_in_two_parts_equals_the_whole": (
        *("sync]", "asynchronous]", "elastic", "decoupled", "ad_psgd", "mindflayer", "ringmaster"),
        *("ringleader", "daso]", "diloco]", "sparseloco", "sparta", "demo", "gossip]"),
        *("dynamic_batch]", "stale_pipeline", "local]", "asynchronous+local", "daso+dynamic"),
        "model_averaging+local",
    ),
    "strategies/test_battery.py::test_a_pair_with_one_at_its_limit_is_the_other": (
        *("asynchronous+daso-daso", "asynchronous+model_averaging-async", "asynchronous+local-l"),
        *("daso+dynamic", "daso+local", "model_averaging+local-m"),
    ),
    "strategies/test_battery.py::test_the_limit_is_synchronous": (
        *("sgd", "adam-asynchronous", "adam-dynamic_batch", "adam-gossip", "adam-diloco"),
    ),
    "strategies/test_battery.py::test_jit_equals_no_jit": (
        *("sync]", "asynchronous]", "asynchronous+local]", "gossip]", "stale_pipeline]"),
    ),
    "strategies/test_battery.py::test_step_is_pure": (
        *("asynchronous]", "buffered]", "local]", "stale_pipeline]", "elastic]"),
    ),
    "strategies/test_battery.py::test_vmap_equals_a_loop": (
        *("asynchronous]", "elastic]", "diloco]", "stale_pipeline]"),
    ),
    "strategies/test_battery.py::test_nothing_recompiles_when_only_numbers_change": (
        *("asynchronous+daso", "dynamic_batch", "gossip", "async_local_sgd", "stale_pipeline"),
    ),
    "strategies/test_compression.py::test_compression_owes_what_every_method_owes": ("top_k-",),
    "strategies/test_compression.py::test_compressed_messages_equal_the_reference": (
        *("top_k-", "sign", "E3M0-model", "top_k of 2 bits-model"),
    ),
    "strategies/test_compression.py::test_what_is_not_sent_is_kept": (
        *("bfloat16", "top_k]", "sign", "powersgd", "E3M0"),
    ),
    "strategies/test_compression.py::test_powersgd_does_not_depend_on_how_a_batch_is_divided": (),
    "strategies/test_compression.py::test_the_clock_counts_the_same_bytes": (
        *("top_k-", "powersgd-1", "E3M0"),
    ),
    "strategies/test_compression.py::test_a_node_sends_so_many_bytes": (
        *("bfloat16", "top_k-", "sign", "powersgd", "E3M0-1"),
    ),
    "strategies/test_sparseloco.py::test_the_clock_counts_its_bytes": ("32",),
    "strategies/test_correcting.py::test_corrections_owe_what_every_method_owes": ("two",),
    "strategies/test_async_local_sgd.py::test_servers_that_heed_age_owe_what_every_method_owes": (
        "two",
    ),
    "strategies/test_dynamic_batch.py::test_the_split_gradient_is_that_of_the_whole_batch": (
        *("shares0-", "shares1-3", "shares4-4"),
    ),
    "strategies/test_dynamic_batch.py::test_every_worker_computes_its_own_examples_in_order": (
        *("shares0-", "shares2-3", "shares4-4", "shares5-1"),
    ),
    # To the bit as users compile, which `make test-slow` does.
    "strategies/test_fragments.py::test_fragments_that_meet_together_are_one_to_the_bit": (),
    "strategies/test_fragments.py::test_streaming_owes_what_every_method_owes": (
        "model_averaging-test_step",
    ),
    "strategies/test_pairs.py::test_it_is_what_its_equations_say": (
        *("asynchronous]", "async_local_sgd+local", "buffered+diloco", "gossip]"),
        "diloco+gossip]",
        *("daso+dynamic", "diloco+async_local_sgd]"),
    ),
    "strategies/test_pairs.py::test_a_pair_trains_to_what_its_better_parent_reaches": (
        *("asynchronous+daso", "buffered+daso"),
    ),
    "strategies/test_snapshots.py::test_a_large_table_is_checkpointed_beside_the_rest": (
        "bfl",
        "ho",
    ),
    "strategies/test_snapshots.py::test_an_update_copies_no_table": ("asynchronous-", "buffered"),
    "strategies/test_snapshots.py::test_the_memory_that_is_said_is_what_is_taken": ("host",),
    "strategies/test_snapshots.py::test_versions_on_the_host_are_exact": ("groups", "fresh"),
    "test_batched_runs.py::test_lanes_are_the_runs_alone": ("mlp", "dynamic_batch"),
    "test_grids.py::test_all_points_can_run": (
        *(
            "combinations",
            "gossip-ladder",
            "arrivals",
            "workers",
            "staleness-laws",
            "outer",
            "meter",
        ),
        *("daso", "dynamic_batch", "implicit", "local-p"),
    ),
    "test_price.py::test_stages_are_priced_of_a_model": ("stale",),
    "test_price.py::test_streaming_diloco_needs_what_its_paper_prints": ("model0",),
    "test_price.py::test_the_tables_are_narrow_and_say_what_has_no_price": (),
    "test_local.py::test_one_group_of_all_blocks_is_synchronous": (),
    "test_local.py::test_probes_are_logged": ("backprop",),
    "test_meter.py::test_an_interrupted_run_resumes_to_the_same_reading": ("235",),
    "test_sizes.py::test_residual_networks_are_for_the_images_that_they_are_of": ("18",),
    "test_sizes.py::test_transformers_have_the_size_that_they_are_called": ("10m", "124m"),
    "test_suite.py::test_a_run_in_which_a_worker_dies_ends_and_names_the_test": ("SIGKILL",),
    "timeline/test_mutated_traces.py::test_whatever_a_reference_refuses_is_refused": (
        *("asynchronous", "elastic", "dynamic_batch", "daso", "diloco"),
    ),
    "timeline/test_prefix.py::test_longer_runs_begin_with_shorter_ones": (
        *("asyn", "sync", "daso", "dynamic", "local groups", "pipeline", "gossip", "elastic", "k_"),
    ),
    "trajectories/test_replicas.py::test_the_gradient_of_the_whole_objective_in_slices": ("7",),
    "trajectories/test_replicas.py::test_blocks_and_parts_do_not_matter": ("2-4",),
    "trajectories/test_single.py::test_nodes_are_metered_between_their_meetings": ("]",),
    "trajectories/test_single.py::test_a_recording_is_of_the_run_itself": (
        *("sync-sgd", "asynchronous-adam", "dynamic_batch-sgd"),
    ),
    "tuning/test_planner.py::test_every_shape": ("1-1", "2-4", "3-", "4-2", "5-3", "6-4"),
    "tuning/test_lowered.py::test_one_lowering_that_serves_for_every_convolution": (),
}


def is_often(nodeid: str) -> bool:
    """Whether `make test` runs it."""
    function, _, case = nodeid.removeprefix("tests/").partition("[")
    begin = OFTEN.get(function)
    return begin is None or case.startswith(begin)
