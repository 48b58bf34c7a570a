//! `redlatch serve`: the locks as pages, for a browser and for Prometheus. It changes nothing unless it is allowed to.

mod access;
mod actions;
mod bounded;
mod doctor;
mod looks;
mod metrics;
mod pages;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Form, Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{
        Html, IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::get,
};
use futures_util::stream;
use redlatch::{Client, LockName, observe::Classes};
use serde::Deserialize;
use tokio::{net::TcpListener, sync::Semaphore};

pub(crate) use self::doctor::Doctor;
use self::{
    access::{Token, USER},
    actions::{Asked, Refusal},
    bounded::Bounded,
    looks::Looks,
    pages::{Choice, Frame},
};
use crate::{
    config::Secret,
    escape,
    exit::{self, Failure},
    forcing,
    snapshot::{Scope, order::Sort},
    talk::Talk,
    timestamp::rfc3339,
};

/// How many pages are kept up to date at once.
const LISTENERS_MAX: usize = 64;

/// What `serve` is told.
pub(crate) struct Options {
    /// Where the locks are. Safe to print.
    pub(crate) place: String,
    pub(crate) scope: Scope,
    /// How old what is shown may be.
    pub(crate) interval: Duration,
    /// The lease of locks of which nobody says otherwise.
    pub(crate) lease: Duration,
    pub(crate) listen: SocketAddr,
    /// What a request has to know; one is made and told if there is none.
    pub(crate) token: Option<Secret>,
    /// Whether who knows it may take a name from its holder.
    pub(crate) allows_actions: bool,
    /// What is looked at for the page of checks.
    pub(crate) doctor: Doctor,
}

/// What every request needs.
struct Shared {
    looks: Looks,
    doctor: Doctor,
    place: String,
    token: Token,
    classes: Classes,
    listeners: Arc<Semaphore>,
    /// What its own forms have in them; none where nothing may be changed.
    form: Option<Token>,
    talk: Talk,
}

type Served = State<Arc<Shared>>;

/// Serves the pages until a signal ends it.
///
/// # Errors
///
/// Unreachable, when it cannot listen there. A server that fails is shown on the pages.
pub(crate) async fn run(client: &Client, options: Options, talk: &Talk) -> Result<u8, Failure> {
    let is_told = options.token.is_none();
    let token = options.token.map_or_else(Token::new, |secret| Ok(Token::of(secret)))?;
    let cannot =
        |error| Failure::new(exit::UNAVAILABLE, format!("cannot listen on {}: {error}", options.listen));
    let listener = TcpListener::bind(options.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    if !address.ip().is_loopback() {
        talk.say("the token goes over the network unencrypted; put a proxy with TLS before it");
    }
    if is_told {
        talk.say(format_args!("http://{USER}:{}@{address}/", token.reveal()));
    } else {
        talk.say(format_args!("http://{address}/"));
    }
    let shared = Shared {
        looks: Looks::new(client.clone(), options.scope, options.interval, options.lease),
        doctor: options.doctor,
        place: options.place,
        token,
        classes: Classes::default(),
        listeners: Arc::new(Semaphore::new(LISTENERS_MAX)),
        form: options.allows_actions.then(Token::new).transpose()?,
        talk: *talk,
    };
    // A signal ends it as it ends any program: nothing is held here.
    axum::serve(Bounded::new(listener), router(Arc::new(shared))).await.map_err(cannot)?;
    Ok(exit::OK)
}

fn router(shared: Arc<Shared>) -> Router {
    let mut closed = Router::new();
    if shared.form.is_some() {
        let limit = DefaultBodyLimit::max(actions::FORM_BYTES_MAX);
        closed = closed.route("/force", get(force_form).post(force)).layer(limit);
    }
    let closed = closed
        .route("/", get(locks))
        .route("/blocking", get(blocking))
        .route("/clients", get(clients))
        .route("/alarms", get(alarms))
        .route("/doctor", get(checks))
        .route("/lock", get(lock))
        .route("/events", get(events))
        .route("/metrics", get(metrics_page))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&shared), only_with_token));
    let css = "text/css; charset=utf-8";
    let script = "text/javascript; charset=utf-8";
    closed
        .route("/healthz", get(health))
        .route("/style.css", get(async move || ([(header::CONTENT_TYPE, css)], include_str!("style.css"))))
        .route("/live.js", get(async move || ([(header::CONTENT_TYPE, script)], include_str!("live.js"))))
        .layer(middleware::map_response(safe_headers))
        .with_state(shared)
}

/// Lets requests in that know the token.
async fn only_with_token(State(shared): Served, request: Request, next: Next) -> Response {
    if shared.token.allows(request.headers()) {
        return next.run(request).await;
    }
    let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"redlatch\", charset=\"UTF-8\"")];
    (StatusCode::UNAUTHORIZED, ask, "the token is missing or wrong\n").into_response()
}

/// Nothing from elsewhere is loaded, nobody frames a page, and nothing of it is kept.
async fn safe_headers(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, &str); 6] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; \
             frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// What the form of the first page sends. What is not understood is as if it had not been sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wanted {
    q: String,
    sort: String,
    reversed: String,
}

async fn locks(State(shared): Served, Query(asked): Query<Wanted>) -> Html<String> {
    let sort = Sort::ALL.into_iter().find(|sort| sort.word() == asked.sort).unwrap_or(Sort::Waiters);
    let choice = Choice { filter: asked.q, sort, is_reversed: asked.reversed == "1" };
    page(&shared, |frame| frame.locks(&choice)).await
}

async fn blocking(State(shared): Served) -> Html<String> {
    page(&shared, |frame| frame.blocking()).await
}

async fn clients(State(shared): Served) -> Html<String> {
    page(&shared, |frame| frame.clients()).await
}

async fn alarms(State(shared): Served) -> Html<String> {
    page(&shared, |frame| frame.alarms()).await
}

async fn checks(State(shared): Served) -> Html<String> {
    let known = shared.looks.known().await;
    let diagnosis = shared.doctor.diagnosis(shared.looks.client(), &known).await;
    page(&shared, |frame| frame.doctor(&diagnosis)).await
}

/// Which name a page is about, in hexadecimal, and which holder of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OneName {
    hex: String,
    owner: String,
}

impl OneName {
    fn name(&self) -> Option<LockName> {
        pages::of_hex(&self.hex).and_then(|bytes| LockName::new(bytes).ok())
    }
}

const NO_NAME: (StatusCode, &str) = (StatusCode::BAD_REQUEST, "hex is not the name of a lock\n");

async fn lock(State(shared): Served, Query(asked): Query<OneName>) -> Response {
    match asked.name() {
        Some(name) => page(&shared, |frame| frame.lock(&name)).await.into_response(),
        None => NO_NAME.into_response(),
    }
}

/// Asks why a name is to be taken from a holder.
async fn force_form(State(shared): Served, Query(asked): Query<OneName>) -> Response {
    match (asked.name(), &shared.form) {
        (Some(name), Some(form)) => {
            page(&shared, |frame| frame.force(&name, &asked.owner, form)).await.into_response()
        }
        _ => NO_NAME.into_response(),
    }
}

/// Takes a name from the holder that was on the page.
async fn force(State(shared): Served, headers: HeaderMap, Form(form): Form<actions::Form>) -> Response {
    let Some(secret) = &shared.form else { return StatusCode::NOT_FOUND.into_response() };
    let asked = match actions::asked(form, &headers, secret) {
        Ok(asked) => asked,
        Err(Refusal::Forged) => {
            let text = "this was not sent by a page of this process; open the page of the lock anew\n";
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        Err(Refusal::Unfit(why)) => return (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    };
    let Asked { name, owner, by, reason } = &asked;
    let outcome = forcing::force(shared.looks.client(), name, owner, by, reason).await;
    shared.looks.look_again().await;
    if outcome.is_taken {
        let at = rfc3339(SystemTime::now());
        let (by, reason) = (escape::text(by), escape::text(reason));
        shared.talk.say(format_args!("{at} {} by {by}; reason: {reason}", outcome.told));
    }
    let code = if outcome.is_taken { StatusCode::OK } else { StatusCode::CONFLICT };
    (code, page(&shared, |frame| frame.forced(name, &outcome.told)).await).into_response()
}

async fn page(shared: &Shared, draw: impl FnOnce(&Frame<'_>) -> maud::Markup) -> Html<String> {
    let known = shared.looks.known().await;
    let may_force = shared.form.is_some();
    Html(draw(&Frame { place: &shared.place, known: &known, may_force }).into_string())
}

async fn metrics_page(State(shared): Served) -> impl IntoResponse {
    let known = shared.looks.known().await;
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::text(&known, &shared.classes))
}

/// Whether the server can be asked, for those who watch over this process. Says nothing else to those without the token.
async fn health(State(shared): Served) -> (StatusCode, &'static str) {
    match shared.looks.known().await.trouble {
        None => (StatusCode::OK, "ok\n"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "the server cannot be asked\n"),
    }
}

/// Says so whenever the server may have been looked at again.
async fn events(State(shared): Served) -> Response {
    let Ok(place) = Arc::clone(&shared.listeners).try_acquire_owned() else {
        let text = "too many pages are kept up to date; reload by hand\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let interval = shared.looks.interval;
    let looks = stream::unfold(place, move |place| async move {
        tokio::time::sleep(interval).await;
        Some((Ok::<Event, Infallible>(Event::default().event("look").data("")), place))
    });
    Sse::new(looks).keep_alive(KeepAlive::default()).into_response()
}
