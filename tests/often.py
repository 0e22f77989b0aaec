"""Which cases of the long proofs `make test` runs; `make test-slow` runs them all.

A proof over all methods, pairs or models takes minutes, mostly of compiling. Of each of these some
cases stay, at least one of every way through the code. They are those whose names in brackets begin
with one of the words between the bars; the others are marked `slow`.
"""

OFTEN = {
    "report/test_moments.py::test_intervals_cover_as_often_as_they_say": "",
    "report/test_notebooks.py::test_a_failed_sweep_says_why": "",
    "report/test_page.py::test_clusters_stay_apart_where_a_tuned_number_tells_them_apart_too": (
        "tuned0"
    ),
    "report/test_race.py::test_a_known_law_is_recognised_and_its_variation_covered": (
        "exponential | lognormal-0.3"
    ),
    "report/test_report.py::test_more_runs_make_no_larger_page": "",
    "data/test_augment.py::test_devices_share_an_augmented_batch": "",
    "data/test_feed.py::test_a_streamed_run_is_the_run_in_memory": "crop",
    "data/test_loading.py::test_mnist5k_is_mlxtends": "",
    "cli/test_cache.py::test_a_run_is_the_same_with_a_cold_a_warm_a_broken_and_no_cache": "",
    "cli/test_disk_full.py::test_a_run_says_one_line_and_goes_on": "event file | third checkpoint",
    "cli/test_disk_full.py::test_whatever_size_it_has": "8] | 64 | 148",
    "cli/test_sweep.py::test_a_sweep_is_of_one_code_whoever_edits_it_meanwhile": "vmap",
    "cli/test_sweep.py::test_every_point_is_as_it_is_alone": "",
    "cli/test_sweep_long.py::test_killed_and_resumed_is_whole": "",
    "cli/test_tune.py::test_killed_again_and_again_it_decides_the_same": "attempt",
    "models/test_convolution.py::test_transforms_of_replicas_end": "",
    "models/test_remat.py::test_blocks_keep_their_inputs_only": "",
    "models/test_remat.py::test_is_the_same_function_with_the_same_parameters": "resmlp",
    "optimizers/test_optimizers.py::test_is_optax_on_gradients_one_update_old": "",
    "train/test_going_on.py::test_a_finished_run_goes_on_to_the_same_floats": (
        "closed | noisy | chain"
    ),
    "train/test_going_on.py::test_a_run_starts_from_anothers_parameters": "sync",
    "data/test_own_data.py::test_real_devices_and_streams_carry_every_kind": "",
    "own/test_things.py::test_the_examples_run_outside_of_the_checkout_under_other_names": "",
    "studies/test_clocks.py::test_backpropagation_is_pipelined_and_not_stalled": "",
    "studies/test_clocks.py::test_greedy_updates_follow_each_other_at_their_longest_stage": "",
    "studies/test_contest.py::test_a_trial_of_the_mean_has_the_loss_that_the_log_calls_so": "",
    "devices/test_processes.py::test_a_workdir_in_use_is_refused_on_all_processes": "",
    "devices/test_stages.py::test_a_state_is_its_rows_to_the_bit": "2bw",
    "race/test_race.py::test_a_server_in_parts_makes_the_same_updates": "case0",
    "race/test_race.py::test_it_goes_on_where_it_was_saved": "plain | too old | k_sync | elastic",
    "race/test_race.py::test_it_waits_where_nobody_arrives": (
        "plain | k_sync | local steps | elastic"
    ),
    "race/test_race.py::test_the_simulator_replays_it": (
        "metered | k_sync | adam | merged, one group"
    ),
    "methods/test_accumulation.py::test_parts_make_the_updates_of_the_whole": (
        "asynchronous | buffered"
    ),
    "methods/test_battery.py::test_a_pair_with_one_at_its_limit_is_the_other": (
        "asynchronous+daso-daso | asynchronous+local-l | daso+dynamic | daso+local-l"
    ),
    "methods/test_battery.py::test_a_run_in_two_parts_equals_the_whole": (
        "sync] | asynchronous] | elastic | decoupled | ad_psgd | ringmaster | ringleader | daso] "
        "| sparseloco | demo | gossip] | stale_pipeline | local] | adam server | all fresh | "
        "correcting | fresh | heloco | overlapping | top_k messages"
    ),
    "methods/test_battery.py::test_a_step_is_pure_and_jit_equals_no_jit": (
        "sync] | asynchronous] | buffered] | elastic] | local] | stale_pipeline] | fresh | "
        "overlapping"
    ),
    "methods/test_battery.py::test_nothing_recompiles_when_only_numbers_change": (
        "asynchronous+daso | dynamic_batch | gossip | async_local_sgd | stale_pipeline | fresh | "
        "overlapping"
    ),
    "methods/test_battery.py::test_the_limit_is_synchronous": (
        "sgd-a | sgd-b | sgd-d | sgd-g | sgd-l | sgd-m | sgd-r | sgd-st | adam-asynchronous | "
        "adam-dynamic_batch | adam-gossip"
    ),
    "methods/test_battery.py::test_vmap_equals_a_loop": (
        "asynchronous] | elastic] | diloco] | stale_pipeline] | fresh | overlapping"
    ),
    "methods/test_messages.py::test_the_clock_counts_the_bytes_of_two_nodes": (
        "demo | diloco of E3M0 | diloco of powersgd | diloco of top_k] | gasloc | gossip | over | "
        "sparseloco 32 | sparta"
    ),
    "methods/test_messages.py::test_a_message_is_nearer_than_none": "",
    "methods/test_messages.py::test_a_node_sends_so_many_bytes": (
        "bfloat16 | top_k- | sign | powersgd | E3M0-1"
    ),
    "methods/test_messages.py::test_powersgd_does_not_depend_on_how_a_batch_is_divided": "",
    "methods/test_messages.py::test_what_is_not_sent_is_kept": (
        "bfloat16 | top_k] | sign | powersgd | E3M0"
    ),
    "methods/test_dynamic_batch.py::test_equal_weights_average_the_workers_mean_gradients": (
        "shares1 | shares3"
    ),
    "methods/test_dynamic_batch.py::test_every_worker_computes_its_own_examples_in_order": (
        "shares0- | shares2-3 | shares4-4 | shares5-1"
    ),
    "methods/test_averaging.py::test_fragments_that_meet_together_are_one_to_the_bit": "",
    "methods/test_equations.py::test_a_pair_trains_to_what_its_better_parent_reaches": "",
    "methods/test_equations.py::test_it_is_what_its_equations_say": (
        "asynchronous] | buffered+diloco | sparta] | eager] | elastic] | demo] | gossip] | "
        "diloco+gossip] | daso+dynamic | ring of | adam] | two fresh | top_k groups | k_async | "
        "unlike | ring] | delayed | aged | heloco | quorum | dropped | averaged model | averaged "
        "diloco+el | reset slowmo | streaming diloco | late diloco | correcting diloco | diloco "
        "with | diloco of top_k] | diloco of sign | diloco of powersgd] | diloco of 4 | "
        "sparseloco of | adam's | long | combine | adapt | random with | choco | gasloc random | "
        "noloco | stash | no_stash | predict | 2bw"
    ),
    "methods/test_snapshots.py::test_a_large_table_is_checkpointed_beside_the_rest": "bfl | ho",
    "methods/test_snapshots.py::test_an_update_copies_no_table": "buffered",
    "methods/test_snapshots.py::test_the_memory_that_is_said_is_what_is_taken": "",
    "methods/test_snapshots.py::test_versions_on_the_host_are_exact": "fresh",
    "methods/test_stale_pipeline.py::test_a_run_resumes_and_the_meter_reads_it": "",
    "methods/test_workers.py::test_the_meter_says_what_is_evaluated": "async_local_sgd",
    "test_batched_runs.py::test_lanes_are_the_runs_alone": "mlp",
    "test_grids.py::test_all_points_can_run": (
        "arrivals | daso | dynamic_batch | gossip-ladder | implicit | local | meter | outer | "
        "quickstart | workers"
    ),
    "test_local.py::test_probes_are_logged": "backprop",
    "test_meter.py::test_an_interrupted_run_resumes_to_the_same_reading": "235",
    "test_price.py::test_a_run_has_the_seconds_the_bytes_and_the_staleness": (
        "asynchronous | decoupled | diloco | gossip | ringleader | sparta"
    ),
    "test_price.py::test_nobody_hears_a_node_that_is_alone": "daso | diloco | gossip | sparseloco",
    "test_price.py::test_stages_are_priced_of_a_model": "stale",
    "test_price.py::test_streaming_diloco_needs_what_its_paper_prints": "model0",
    "test_price.py::test_the_tables_are_narrow_and_say_what_has_no_price": "",
    "test_sizes.py::test_residual_networks_are_for_the_images_that_they_are_of": "18",
    "test_sizes.py::test_transformers_have_the_size_that_they_are_called": "10m | 124m",
    "test_suite.py::test_a_run_in_which_a_worker_dies_ends_and_names_the_test": "SIGKILL",
    "test_sizes.py::test_learns_more_than_frequencies_in_few_updates": "",
    "clock/test_mutated_traces.py::test_whatever_a_reference_refuses_is_refused": (
        "asynchronous | daso | dynamic_batch"
    ),
    "trajectories/test_replicas.py::test_blocks_and_parts_do_not_matter": "2-4",
    "trajectories/test_replicas.py::test_the_gradient_of_the_whole_objective_in_slices": "7",
    "trajectories/test_single.py::test_a_recording_is_of_the_run_itself": (
        "asynchronous-adam | dynamic_batch-sgd"
    ),
    "trajectories/test_single.py::test_nodes_are_metered_between_their_meetings": "]",
    "tune/test_layers.py::test_one_lowering_that_serves_for_every_convolution": "",
    "tune/test_planner.py::test_every_shape": "1-1 | 2-4 | 3- | 4-2 | 5-3 | 6-4",
}


def is_often(nodeid: str) -> bool:
    """Whether `make test` runs it."""
    function, _, case = nodeid.removeprefix("tests/").partition("[")
    words = OFTEN.get(function)
    return words is None or case.startswith(tuple(word for word in words.split(" | ") if word))
