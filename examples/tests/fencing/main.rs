//! The statements of `docs/fencing.md`, read from the page, on a real server: a lower token is refused, whoever else is at the row. And the
//! example `fenced` finds places that do not check.

#![allow(clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod bench;
mod example;
mod page;
mod statements;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use lock_testkit::postgres::Installation;
use lock_testkit::requirement;

use crate::bench::on_server;
use crate::example::IN_MEMORY;

fn main() -> ExitCode {
    let trials = vec![
        Trial::test("page_and_example_have_the_same_statements", page::same_statements),
        Trial::test("page_states_the_strengths_as_the_code_does", page::strengths),
        Trial::test("example_in_memory_refuses_a_task_that_was_not_woken", || example::good(IN_MEMORY)),
        Trial::test("example_in_memory_whose_service_does_not_check_fails", || {
            example::broken(IN_MEMORY, &["the service"])
        }),
        requirement::trial("example_refuses_a_process_that_was_stopped", Installation::find, |_| example::good(None)),
        requirement::trial("example_whose_places_do_not_check_fails", Installation::find, |_| {
            example::broken(None, &["the database", "the service"])
        }),
        on_server("tokens_sort_as_uuid_as_they_do", statements::order),
        on_server("lower_token_is_refused_and_equal_and_higher_ones_pass", statements::refusal),
        on_server("statement_without_its_condition_lets_a_lower_token_through", statements::no_condition),
        on_server("row_that_is_missing_gives_no_row_or_is_made", statements::missing_row),
        on_server("lower_token_behind_a_higher_one_is_refused_once_that_is_committed", statements::behind),
        on_server("higher_token_behind_a_lower_one_reads_what_it_wrote", statements::ahead),
        on_server("first_two_of_a_key_are_told_apart_by_their_tokens", statements::first_two),
        on_server("read_without_the_token_can_be_overtaken_and_with_it_not", statements::overtaken),
        on_server("deleted_row_has_forgotten_its_token", statements::deleted),
        on_server("tokens_of_a_real_lock_pass_in_their_order", statements::real_tokens),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
