//! Restrictions of a function: rights, methods, keys and the engine that it cannot exceed.

use super::*;

/// Keeps the first object of the next run, which outlives its command as that of an asynchronous
/// job does.
fn keep_object(stage: &Stage) -> Arc<Mutex<Option<Arc<dyn GrantedObject>>>> {
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    stage.function(move |call| {
        *keep.lock() = Some(Arc::clone(&call.objects[0]));
        Vec::new()
    });
    kept
}

/// Runs a function without security, under a capability with these bits.
fn send_unsecured(stage: &Stage, permissions: Permissions, objects: Vec<FunctionObject>) -> Answer {
    let command =
        Command::ExecuteFunction(ExecuteFunction { object: user(CODE), allocation: REPLY_MAX as u32 });
    let capability = Capability { permissions, ..stage.bench.capability(&command, SecurityMethod::NoSec) };
    let function = Some(ExecuteRequest::Run(request(objects)));
    let segment = Segment { function, ..Segment::default() }.encode(ACTION).unwrap();
    let ready = stage.bench.ready_scattered(command, &ListPair::default(), &[], &capability, segment);
    stage.bench.verify(&ready, &stage.bench.send(&ready)).unwrap()
}

#[test]
fn bits_of_the_capability_count_without_security() {
    let stage = Stage::with(OsdConfig { insecure_nosec: true, ..OsdConfig::default() });
    stage.function(|call| {
        let mut bytes = [0; 4];
        call.objects[0].read(0, &mut bytes).unwrap();
        bytes.to_vec()
    });
    let one = entry(user(DATA), ObjectType::User, Permissions::READ);
    let reply = send_unsecured(&stage, Permissions::EXECUTE | Permissions::READ, vec![one]).good();
    assert_eq!(ReplyParts::parse(&reply.data).unwrap().inline, b"0123");
    assert_eq!(send_unsecured(&stage, Permissions::EXECUTE, vec![one]).sense(), (5, 0x2400));
}

#[test]
fn entry_narrows_rights_of_its_capability() {
    let stage = Stage::new();
    let rights = Permissions::SET_ATTR | Permissions::GET_ATTR;
    let one = entry(user(DATA), ObjectType::User, rights);
    let more = Permissions::POL_SEC | Permissions::OBJ_MGMT | Permissions::M_OBJECT;
    let capability = Capability { permissions: rights | more, ..stage.granting(&one) };
    let (tag, quota) = (AttributeId::new(5, 0x4000_0001), AttributeId::new(2, 1));
    stage.function(move |call| {
        let object = &call.objects[0];
        let denied = GrantError::AccessDenied;
        assert_eq!(object.set_attribute(tag, &[0, 0, 0, 9]), Err(denied), "needs POL_SEC");
        assert_eq!(object.attribute(tag), Err(denied), "needs POL_SEC");
        assert_eq!(object.set_attribute(quota, &[0; 8]), Err(denied), "needs OBJ_MGMT");
        assert_eq!(object.set_attribute(AttributeId::new(1, 9), b"name"), Ok(()));
        b"done".to_vec()
    });
    let answer = stage.run_with(request(vec![one]), &[capability]).good();
    assert_eq!(ReplyParts::parse(&answer.data).unwrap().inline, b"done");
}

#[test]
fn object_floor_applies_to_unsecured_function() {
    let stage = Stage::with(OsdConfig { insecure_nosec: true, ..OsdConfig::default() });
    let one = entry(user(DATA), ObjectType::User, Permissions::READ);
    let send = || send_unsecured(&stage, Permissions::EXECUTE | Permissions::READ, vec![one]);
    let kept = keep_object(&stage);
    send().good();
    let handle = kept.lock().take().unwrap();
    assert_eq!(handle.read(0, &mut [0; 4]), Ok(4));
    stage.set(user(DATA), &[(0xF001, 1, &[2])]);
    assert_eq!(handle.read(0, &mut [0; 4]), Err(GrantError::AccessDenied), "raised during the run");
    assert_eq!(send().sense(), (5, 0x2400));
}

#[test]
fn floor_raised_during_run_ends_access() {
    let stage = Stage::new();
    let one = entry(user(DATA), ObjectType::User, Permissions::READ);
    let capability = Capability { method: SecurityMethod::CmdRsp, ..stage.granting(&one) };
    let kept = keep_object(&stage);
    stage.run_with(request(vec![one]), &[capability]).good();
    let handle = kept.lock().take().unwrap();
    assert_eq!(handle.read(0, &mut [0; 4]), Ok(4));
    stage.set(user(DATA), &[(0xF001, 1, &[3])]);
    assert_eq!(handle.read(0, &mut [0; 4]), Err(GrantError::AccessDenied));
    assert_eq!(stage.run_with(request(vec![one]), &[capability]).sense(), (5, 0x2400));
}

#[test]
fn extension_below_floor_of_device_is_refused() {
    let config = OsdConfig { method_floor: Some(SecurityMethod::AllData), ..OsdConfig::default() };
    // The attributes of the partition still permit CMDRSP.
    let Stage { bench, runner } = Stage::new();
    let bench = Bench::start(config, bench.store.clone(), 2, 0);
    bench.keys.lock().add_partition(PID).unwrap();
    bench.unit.set_function_runner(Arc::clone(&runner) as Arc<dyn FunctionRunner>);
    let stage = Stage { bench, runner };
    let one = entry(user(DATA), ObjectType::User, Permissions::READ);
    let good = stage.granting(&one);
    stage.run_with(request(vec![one]), &[good]).good();
    let weak = Capability { method: SecurityMethod::CmdRsp, ..good };
    assert_eq!(stage.run_with(request(vec![one]), &[weak]).sense(), (5, 0x2400));
}

#[test]
fn frozen_key_of_function_ends_access() {
    let stage = Stage::new();
    let other = ObjectId::new(0x20000, DATA);
    stage.bench.create_partition(other.partition);
    stage.bench.run(Command::Create(Create { object: other, count: 1 }), ListPair::default(), &[]).good();
    let kept = keep_object(&stage);
    stage.run(&[entry(other, ObjectType::User, Permissions::READ)]);
    let handle = kept.lock().take().unwrap();
    assert_eq!(handle.read(0, &mut [0; 4]), Ok(0));
    // Key 0 of the partition of the code; the data is in another one.
    stage.set(ObjectId::of_partition(PID), &[(0x3000_0005, 5, &[0, 1])]);
    assert_eq!(handle.read(0, &mut [0; 4]), Err(GrantError::AccessDenied));
}

#[test]
fn revoked_or_expired_function_loses_access() {
    let tag = |stage: &Stage, tag: u8| stage.set(user(CODE), &[(5, 0x4000_0001, &[0, 0, 0, tag])]);
    let run = |expires_ms: u64, revoke: &dyn Fn(&Stage)| {
        let stage = Stage::new();
        tag(&stage, 3);
        let kept = keep_object(&stage);
        let one = entry(user(DATA), ObjectType::User, Permissions::READ);
        let segment = Segment {
            function: Some(ExecuteRequest::Run(request(vec![one]))),
            extensions: vec![stage.granting(&one).encode()],
            proofs: vec![SIGN_HERE],
            ..Segment::default()
        };
        let restrict = |capability: &mut Capability| {
            let scope = Scope { policy_access_tag: 3, ..Scope::default() };
            capability.descriptor = Descriptor::User { scope, allowed: user(CODE), range: Range::ALL };
            capability.expires_ms = expires_ms;
        };
        stage.send(segment, restrict).good();
        let handle = kept.lock().take().unwrap();
        assert_eq!(handle.read(0, &mut [0; 4]), Ok(4));
        revoke(&stage);
        handle.read(0, &mut [0; 4])
    };
    let later_ms = START_MS + 3_600_000;
    assert_eq!(run(later_ms, &|stage| tag(stage, 4)), Err(GrantError::AccessDenied));
    let pass = |stage: &Stage| {
        stage.bench.fake.ms.store(START_MS + 1001, std::sync::atomic::Ordering::SeqCst);
    };
    assert_eq!(run(START_MS + 1000, &pass), Err(GrantError::AccessDenied));
    assert_eq!(run(later_ms, &pass), Ok(4), "the capability of the data is valid");
    let remove = |stage: &Stage| {
        stage.bench.run(Command::Remove(Target { object: user(CODE) }), ListPair::default(), &[]).good();
    };
    assert_eq!(run(later_ms, &remove), Ok(4), "the code is a copy");
}

#[test]
fn request_cannot_replace_engine_of_function() {
    let stage = Stage::new();
    let with = |engine| stage.run_with(RunRequest { engine, ..request(Vec::new()) }, &[]);
    stage.set(user(CODE), &[(0xF002, 1, &[EngineType::Wasm as u8])]);
    let refused = with(Some(EngineType::C));
    assert_eq!(refused.sense(), (5, 0x2400));
    let field = refused.sense.unwrap().field.unwrap();
    assert_eq!((field.in_cdb, field.byte), (false, 50), "ENGINE in the segment");
    assert_eq!(with(Some(EngineType::Wasm)).sense(), (5, 0x2000), "equal, but not on this device");
    stage.set(user(CODE), &[(0xF002, 1, &[EngineType::C as u8])]);
    with(Some(EngineType::C)).good();
    with(None).good();
}

#[test]
fn result_entry_creates_object_for_service() {
    let stage = Stage::new();
    stage.function(|call| {
        assert_eq!(call.objects.len(), 1, "the function has no handle of it");
        let result = call.result_object.as_ref().unwrap();
        assert_eq!(result.write(0, b"x"), Err(GrantError::Invalid), "it does not exist");
        let created = result.create().unwrap();
        assert_eq!(created.object(), user(OTHER));
        created.write(0, b"the result").unwrap();
        assert_eq!(created.read(0, &mut [0; 4]), Err(GrantError::AccessDenied));
        assert_eq!(created.write(99, b"x"), Err(GrantError::AccessDenied), "beyond its range");
        assert!(result.create().is_err(), "it exists");
        Vec::new()
    });
    let data = entry(user(DATA), ObjectType::User, Permissions::READ);
    let result = entry(user(OTHER), ObjectType::User, FunctionObject::RESULT_RIGHTS);
    let range = Range { start: 0, length: 64 };
    let mut capability = stage.granting(&result);
    capability.descriptor = Descriptor::User { scope: Scope::default(), allowed: user(OTHER), range };
    let run = RunRequest { result_entry: true, ..request(vec![data, result]) };
    stage.run_with(run.clone(), &[stage.granting(&data), capability]).good();
    let mut stored = [0; 16];
    assert_eq!(stage.bench.store.read(user(OTHER), 0, &mut stored).unwrap(), 10);
    assert_eq!(&stored[..10], b"the result");
    let mut narrow = capability;
    narrow.permissions = Permissions::WRITE;
    assert_eq!(stage.run_with(run, &[stage.granting(&data), narrow]).sense(), (5, 0x2400));
}
